"""Make the section of a pipeline of tag views from what is known of a journal."""

from collections.abc import Sequence
from datetime import UTC, datetime

from tagmill.domain.journal_tables import VIEW_TABLE
from tagmill.domain.time_buckets import BucketSize
from tagmill.onboarding.bucket_sizes import DAY_MS, advice, fitting_size
from tagmill.onboarding.draft import Draft
from tagmill.onboarding.journal_layout import DEFAULTS, OLDER, SNAPSHOTS
from tagmill.onboarding.journal_survey import JournalSurvey, TagFacts, moment_text
from tagmill.onboarding.questions import Ask, Question
from tagmill.onboarding.toml_file import Section, quoted

# The plugin's default of events-by-tag.first-time-bucket: no event is older.
EARLIEST = "20151120T00:00"
MOST_TAGS, MOST_PAYLOADS = 200, 30


def journal_draft(
    survey: JournalSurvey,
    pipeline: str,
    destination: str,
    ask: Ask,
    tags: Sequence[str] = (),
) -> Draft:
    """Return the pipeline of a journal.

    Args:
        survey: what is known of the journal.
        pipeline: name of the pipeline.
        destination: table of ClickHouse.
        ask: answers what the servers can't.
        tags: tags that the operator names; empty: those that were seen.
    """
    return _Proposal(survey, pipeline, destination, ask).draft(tags)


class _Proposal:
    def __init__(self, survey: JournalSurvey, pipeline: str, destination: str, ask: Ask) -> None:
        self.survey, self.ask, self.pipeline = survey, ask, pipeline
        self.section = Section(f"pipelines.{pipeline}")
        self.section.add("keyspace", survey.keyspace)
        self.section.add("destination", destination, "Table of ClickHouse, of this pipeline only.")
        self.made = Draft([self.section], pipelines=[pipeline])

    def draft(self, tags: Sequence[str]) -> Draft:
        survey = self.survey
        self.section.comments.append(f"A journal of {survey.generation}.")
        self.made.facts.append(f"keyspace {survey.keyspace}: tables of {survey.generation}")
        if survey.generation.startswith(OLDER):
            self.made.warnings.append(
                f"these are tables of {survey.generation}: see tagmill views migrate -p {self.pipeline} "
                "--dry-run"
            )
        views = self._who_writes_the_view()
        self._tables()
        self._bucket_size()
        self._tags(tags)
        self._first_bucket()
        if views == "tagmill":
            self.section.add(
                "views", "tagmill", "Tagmill writes the tag views; the application has events-by-tag off."
            )
        self._payloads()
        self._commands(views)
        return self.made

    def _who_writes_the_view(self) -> str:
        survey = self.survey
        if survey.view_rows and any(facts.timebuckets for facts in survey.tags):
            return "application"
        missing = survey.layout.first("view") is None
        unwritten = survey.tagged_events and (missing or not survey.has_progress)
        if not missing and not unwritten:
            return "application"
        state = "has no view of tags" if missing else "has an empty view of tags"
        return self.ask(
            Question(
                f"Keyspace {survey.keyspace} {state}. Who writes it, the application or tagmill?",
                "tagmill" if unwritten or missing else "application",
                ("application", "tagmill"),
            )
        )

    def _tables(self) -> None:
        tables = self.survey.tables
        for key, name, kind in (
            ("view_table", tables.view, "view"),
            ("messages_table", tables.messages, "messages"),
            ("metadata_table", tables.metadata, "metadata"),
            ("all_persistence_ids_table", tables.all_persistence_ids, "all_persistence_ids"),
        ):
            others = [
                name for name in self.survey.layout.tables.get(kind, ()) if name != getattr(tables, kind)
            ]
            if others:
                self.made.not_told.append(f"{key}: {name} was taken; {', '.join(others)} could be it, too")
            if name != DEFAULTS[kind]:
                self.section.add(key, name)
        named = self.survey.layout.first("snapshots")
        if named:
            self.section.add("snapshot_keyspace", self.survey.keyspace)
        if named and named != SNAPSHOTS:
            self.section.add("snapshot_table", named)

    # -- buckets

    def _busiest(self) -> TagFacts | None:
        rated = [facts for facts in self.survey.tags if facts.rows_a_day is not None]
        return max(rated, key=lambda facts: facts.rows_a_day or 0.0, default=None)

    def _bucket_size(self) -> None:
        detected, busiest = self.survey.size, self._busiest()
        size, comments = detected.size, [f"Told from the data: {detected.reason}."]
        if not detected.certain:
            text = f"Bucket size of the application (events-by-tag.bucket-size): {detected.reason}"
            proposal = size or (fitting_size(busiest.rows_a_day or 0) if busiest else BucketSize.HOUR)
            size = BucketSize(self.ask(Question(text, proposal.value, tuple(BucketSize))))
            comments = [
                f"Not certain: {detected.reason}.",
                "Compare it with events-by-tag.bucket-size of the application.",
            ]
            self.made.not_told.append(f"bucket_size: {detected.reason}; {size.value} was taken")
        assert size
        if busiest and (
            warning := advice(size, busiest.rows_a_day or 0.0, busiest.largest_bucket, busiest.days)
        ):
            better = fitting_size(busiest.rows_a_day or 0.0)
            way = (
                f" (tagmill views rebucket -p {self.pipeline} --to {better.value})" if better != size else ""
            )
            self.made.warnings.append(warning + way)
            comments.append(f"Warning: {warning}.")
        self.section.add("bucket_size", size.value, *comments)
        self.made.facts.append(f"bucket size {size.value}: {detected.reason}")
        self.size = size

    def _first_bucket(self) -> None:
        buckets = [bucket for facts in self.survey.tags for bucket in facts.timebuckets]
        if buckets and self.survey.view_listed:
            first, why = moment_text(min(buckets)), "The first bucket of the view."
        elif self.survey.first_event is not None and self.survey.messages_listed and not buckets:
            begin = self.survey.first_event - self.survey.first_event % DAY_MS
            first, why = moment_text(begin), "The day of the first event."
        elif self.survey.first_event is None and not buckets:
            now = int(datetime.now(UTC).timestamp() * 1000)
            first, why = moment_text(now - now % DAY_MS), "The journal has no event yet: today."
        else:
            first = EARLIEST
            too_much = "the view has" if buckets else "there is no view, and the journal has"
            why = "The plugin's default. Readers of the view look into each bucket from it on: set the first one."
            self.made.not_told.append(
                f"first_time_bucket: {too_much} too many partitions to look for the first bucket; {EARLIEST} was "
                "taken"
            )
        self.section.add("first_time_bucket", first, why)
        self.made.facts.append(f"first bucket {first} UTC")

    # -- tags and payloads

    def _tags(self, named: Sequence[str]) -> None:
        seen = {facts.tag: facts for facts in self.survey.tags if facts.tag}
        tags = list(named) or list(seen)
        if not named and len(tags) > MOST_TAGS:
            tags = sorted(tags, key=lambda tag: (-len(seen[tag].timebuckets), tag))[:MOST_TAGS]
            self.made.not_told.append(
                f"tags: the {MOST_TAGS} with most buckets of {len(seen)} were taken; which of them are to be "
                "delivered is yours to say"
            )
        if not tags:
            text = (
                f"No event of keyspace {self.survey.keyspace} has a tag yet. Tags, with commas between them"
            )
            answer = self.ask(Question(text, None, option="--tag"))
            tags = [tag for text in answer.split(",") if (tag := text.strip())]
        elif not named and not self.survey.view_listed:
            self.made.not_told.append(
                "tags: the view is too large to list all of them; rare ones may be missing"
            )
        comments = [self._tag_line(seen[tag]) for tag in tags if tag in seen][:MOST_TAGS]
        self.section.add("tags", tags, "What was seen of each:" if comments else "Not seen yet.", *comments)
        self.made.facts += [f"tag {line}" for line in comments[:20]]
        if len(comments) > 20:
            self.made.facts.append(f"and {len(comments) - 20} more tags")

    def _tag_line(self, facts: TagFacts) -> str:
        if not facts.timebuckets:
            return f"{quoted(facts.tag)}: no row in the view"
        rows = "" if facts.rows_a_day is None else f", about {facts.rows_a_day:,.0f} rows"
        rows += " a day" if rows and facts.days >= 1 else ""
        span = f"{moment_text(facts.timebuckets[0])} to {moment_text(facts.timebuckets[-1])}"
        more = "" if self.survey.view_listed else " at least"
        return f"{quoted(facts.tag)}: {len(facts.timebuckets):,} buckets{more}, {span}{rows}"

    def _payloads(self) -> None:
        survey = self.survey
        if not survey.payloads:
            return
        self.section.comments.append(f"Payloads of {survey.sampled_events:,} sampled events:")
        for kind in survey.payloads[:MOST_PAYLOADS]:
            payload = kind.payload
            manifest = payload.ser_manifest or payload.event_manifest
            name = f"serializer {payload.ser_id}, manifest {quoted(manifest)}"
            form = "text" if kind.text else "binary"
            where = f"e.g. {quoted(kind.persistence_id)} {kind.sequence_nr}"
            self.section.comments.append(f"  {name}: {kind.events:,}, {form}, {where}")
            self.made.facts.append(
                f"{name}: {kind.events:,} events, {kind.bytes:,} bytes, e.g. {kind.example}"
            )
        if len(survey.payloads) > MOST_PAYLOADS:
            self.section.comments.append(f"  and {len(survey.payloads) - MOST_PAYLOADS} more kinds")

    def _commands(self, views: str) -> None:
        if views == "tagmill":
            self.made.commands.append(f"views build -p {self.pipeline}")
        self.made.commands.append(f"run deliver -p {self.pipeline}")
        if self.survey.layout.first("view") and self.survey.tables.view != VIEW_TABLE:
            self.made.facts.append(f"view table {self.survey.tables.view}")
