"""Run a real single-node Apache Kafka 4.1 (KRaft) from plain jars. Needs Java 17.

Replication can't be tested with one node. Data survive a stop and a kill.
"""

import base64
import struct
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from local.errors import PartDidNotStart, one_line
from local.java import SPARK, find_java
from local.service import Service
from local.tls import ServerTls, connected
from tagmill.errors import ConfigurationError

COLLECTOR = "-XX:+UseSerialGC"
BROKER, FORMATTER = "kafka.Kafka", "kafka.tools.StorageTool"
API_VERSIONS = 18

PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners={protocol}://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners={protocol}://127.0.0.1:{port}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,{protocol}:{protocol}
inter.broker.listener.name={protocol}
controller.listener.names=CONTROLLER
log.dirs={home}/data
num.partitions=1
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
# few clients ask it, and each idle thread looks for work several times a second
num.io.threads=2
num.network.threads=1
background.threads=1
# a topic that is to lose records says so itself
log.retention.ms=-1
log.retention.bytes=-1
"""
# Clients, of which the broker itself is one, need a certificate of the authority.
ENCRYPTION = """\
ssl.client.auth=required
ssl.keystore.type=PEM
ssl.keystore.location={shown}
ssl.truststore.type=PEM
ssl.truststore.location={authority}
"""
LOG4J = """\
appender.c.type=Console
appender.c.name=C
appender.c.layout.type=PatternLayout
appender.c.layout.pattern=[%d] %p %m (%c)%n
rootLogger.level=WARN
rootLogger.appenderRef.c.ref=C
"""


class Kafka(Service):
    """A broker on 127.0.0.1:port that is its own controller; `heap` is written as Java writes it.

    With `tls` it serves only clients with a certificate of the authority. `sasl` is further properties by which
    clients log in, `flags` are further ones of the JVM.
    """

    name: ClassVar[str] = "kafka"

    def __init__(
        self,
        home: Path,
        port: int,
        jars: Path,
        heap: str = "512m",
        tls: ServerTls | None = None,
        sasl: str = "",
        flags: Sequence[str] = (),
    ) -> None:
        super().__init__(home, port)
        self.tls, self.sasl, self.flags = tls, sasl, flags
        self.jars, self.heap = jars.resolve(), heap
        self.controller_port = port + 10000 if port + 10000 < 65536 else port - 10000

    def ports(self) -> list[int]:
        """Return the clients' port and the controller's."""
        return [self.port, self.controller_port]

    def where(self) -> str:
        """Return the address of the bootstrap server."""
        return f"127.0.0.1:{self.port} (bootstrap server)"

    def configure(self) -> None:
        """Write server.properties and log4j2.properties; format the storage before the first start."""
        if not any(self.jars.glob("*.jar")):
            raise ConfigurationError(
                f"there are no Kafka jars in {self.jars}; Kafka was not started. Run bin/setup"
            )
        (self.home / "tmp").mkdir(exist_ok=True)
        protocol = ("SASL_" if self.sasl else "") + ("SSL" if self.tls else "PLAINTEXT")
        values = {"home": self.home, "port": self.port, "controller": self.controller_port}
        text = PROPERTIES.format(**values, protocol=protocol) + self.sasl
        if self.tls:
            shown = self.tls.write_for_java(self.home / "shown.pem")
            text += ENCRYPTION.format(shown=shown, authority=self.tls.authority)
        (self.home / "server.properties").write_text(text)
        (self.home / "log4j2.properties").write_text(LOG4J)
        if not (self.home / "data" / "meta.properties").exists():
            self._format()

    def command(self) -> list[str]:
        """Return the command that starts the broker: Java, its flags, Kafka's main class and
        server.properties.
        """
        return [
            *self._java(f"-Xms{self.heap}", f"-Xmx{self.heap}", COLLECTOR, *self.flags),
            BROKER,
            str(self.home / "server.properties"),
        ]

    def healthy(self) -> bool:
        """Send an ApiVersions request; an answer without an error means that clients are served."""
        try:
            with connected(self.port, self.tls) as connection:
                body = struct.pack(">hhih", API_VERSIONS, 0, 7, 5) + b"probe"
                connection.sendall(struct.pack(">i", len(body)) + body)
                return struct.unpack(">iih", connection.recv(10))[1:] == (7, 0)
        except (OSError, struct.error):
            return False

    def _java(self, *flags: str) -> list[str]:
        scratch = self.home / "tmp"
        return [
            find_java(SPARK),
            *flags,
            "-XX:-UsePerfData",
            "-XX:+ExitOnOutOfMemoryError",
            "-Djava.net.preferIPv4Stack=true",
            f"-Djava.io.tmpdir={scratch}",
            f"-Dkafka.logs.dir={self.home}",
            f"-Dlog4j2.configurationFile=file://{self.home}/log4j2.properties",
            "-cp",
            f"{self.home}:{self.jars}/*",
        ]

    def _format(self) -> None:
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A", 1)
        command = [
            *self._java("-XX:TieredStopAtLevel=1"),
            FORMATTER,
            "format",
            "-t",
            cluster,
            "-c",
            str(self.home / "server.properties"),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise PartDidNotStart(
                f"kafka: formatting {self.home / 'data'} failed: {one_line(done.stdout + done.stderr)}"
            )
