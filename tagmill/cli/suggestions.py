"""Suggest the command that a wrong one may have meant, also where that is a command of a group."""

from collections.abc import Iterator
from typing import Any

from typer.core import TyperGroup

from tagmill.domain.nearest import nearest


class SuggestingGroup(TyperGroup):
    """All commands; `tagmill deliver` is answered with `tagmill run deliver`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the arguments name; a wrong one is a usage error with a suggestion."""
        if args and self.get_command(ctx, args[0]) is None:
            by_word = {path.rpartition(" ")[2]: path for path in _paths(self)}
            word = nearest(args[0], by_word)
            suggestion = f' Did you mean "tagmill {by_word[word]}"?' if word else ""
            ctx.fail(f"No such command {args[0]!r}.{suggestion}")
        return super().resolve_command(ctx, args)


def _paths(group: Any, above: str = "") -> Iterator[str]:
    """Yield the commands below a group, those of the outermost group last: they win."""
    for name, command in group.commands.items():
        yield from _paths(command, f"{above}{name} ") if hasattr(command, "commands") else ()
    yield from (f"{above}{name}" for name in group.commands)
