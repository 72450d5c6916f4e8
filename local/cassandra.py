"""Run a real single-node Apache Cassandra 5.0 from plain jars: no container, no package. Needs Java 11 or 17.

Quorum and repair can't be tested with one node. Data survive a stop and a kill (commit log).
"""

import os
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from local.errors import one_line
from local.java import CASSANDRA, find_java
from local.service import Service
from local.tls import ServerTls, connected
from tagmill.errors import ConfigurationError

COLLECTOR = "-XX:+UseParallelGC"
MAIN = "org.apache.cassandra.service.CassandraDaemon"
EXPORTS = """java.base/jdk.internal.misc java.management.rmi/com.sun.jmx.remote.internal.rmi java.rmi/sun.rmi.registry
java.rmi/sun.rmi.server java.sql/java.sql java.base/java.lang.ref jdk.unsupported/sun.misc
jdk.compiler/com.sun.tools.javac.file jdk.attach/sun.tools.attach""".split()
OPENS = """java.base/java.lang.module java.base/java.net java.base/jdk.internal.loader java.base/jdk.internal.ref
java.base/jdk.internal.reflect java.base/jdk.internal.math java.base/jdk.internal.module
java.base/jdk.internal.util.jar jdk.management/com.sun.management.internal java.base/sun.nio.ch
java.base/java.io java.base/java.lang.reflect jdk.compiler/com.sun.tools.javac java.base/java.lang
java.base/java.util java.base/java.nio java.base/java.util.concurrent java.base/java.util.concurrent.atomic""".split()

YAML = """\
cluster_name: local
num_tokens: {tokens}
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
endpoint_snitch: SimpleSnitch
listen_address: 127.0.0.1
rpc_address: 127.0.0.1
native_transport_port: {port}
storage_port: {storage_port}
start_native_transport: true
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters:
      - seeds: "127.0.0.1:{storage_port}"
data_file_directories: [{home}/data]
commitlog_directory: {home}/commitlog
saved_caches_directory: {home}/saved_caches
hints_directory: {home}/hints
cdc_raw_directory: {home}/cdc_raw
commitlog_sync: periodic
commitlog_sync_period: 10000ms
commitlog_total_space: 512MiB
disk_failure_policy: die
commit_failure_policy: die
auto_snapshot: false
auto_bootstrap: false
hinted_handoff_enabled: false
concurrent_compactors: 1
compaction_throughput: 0MiB/s
file_cache_size: 64MiB
networking_cache_size: 32MiB
read_request_timeout: 30s
range_request_timeout: 60s
write_request_timeout: 30s
truncate_request_timeout: 60s
request_timeout: 60s
materialized_views_enabled: true
authenticator: {authenticator}
authorizer: {authorizer}
permissions_validity: 100ms
"""
# Clients need a certificate of the authority.
ENCRYPTION = """\
client_encryption_options:
  enabled: true
  optional: false
  require_client_auth: true
  ssl_context_factory:
    class_name: org.apache.cassandra.security.PEMBasedSslContextFactory
  keystore: {shown}
  truststore: {authority}
"""
LOGBACK = """<configuration scan="false"><appender name="F" class="ch.qos.logback.core.FileAppender">
<file>{home}/system.log</file><encoder><pattern>%-5level [%thread] %date{{ISO8601}} %F:%L - %msg%n</pattern></encoder></appender>
<root level="INFO"><appender-ref ref="F"/></root></configuration>
"""


class Cassandra(Service):
    """A node on 127.0.0.1:port; `passwords` switches logins and rights on (first user: cassandra/cassandra, a
    superuser).

    `heap` is written as Java writes it; `flags` are JVM and Cassandra flags in addition to those that every
    node here has, `settings` lines of cassandra.yaml; `tokens` is the number of ranges that the node's tables are
    divided into. With `tls` it serves only clients with a certificate of the authority.
    """

    name: ClassVar[str] = "cassandra"

    def __init__(
        self,
        home: Path,
        port: int,
        jars: Path,
        heap: str = "1g",
        passwords: bool = False,
        flags: Sequence[str] = (COLLECTOR,),
        tokens: int = 16,
        tls: ServerTls | None = None,
        settings: str = "",
    ) -> None:
        super().__init__(home, port)
        self.settings = settings
        self.tls = tls
        self.flags, self.tokens = flags, tokens
        self.jars, self.heap, self.passwords = jars.resolve(), heap, passwords
        self.storage_port = port + 10000 if port + 10000 < 65536 else port - 10000

    def ports(self) -> list[int]:
        """Return the CQL port and the node's internal port."""
        return [self.port, self.storage_port]

    def where(self) -> str:
        """Return the CQL address."""
        return f"127.0.0.1:{self.port} (CQL)"

    def configure(self) -> None:
        """Write cassandra.yaml and logback.xml; raise ConfigurationError if the jars are missing."""
        if not any(self.jars.glob("*.jar")):
            raise ConfigurationError(
                f"there are no Cassandra jars in {self.jars}; Cassandra was not started. Run bin/setup"
            )
        (self.home / "tmp").mkdir(exist_ok=True)
        authenticator = "PasswordAuthenticator" if self.passwords else "AllowAllAuthenticator"
        authorizer = "CassandraAuthorizer" if self.passwords else "AllowAllAuthorizer"
        values = {
            "home": self.home,
            "port": self.port,
            "storage_port": self.storage_port,
            "tokens": self.tokens,
        }
        yaml = YAML.format(**values, authenticator=authenticator, authorizer=authorizer)
        if self.tls:
            shown = self.tls.write_for_java(self.home / "shown.pem")
            yaml += ENCRYPTION.format(shown=shown, authority=self.tls.authority)
        (self.home / "cassandra.yaml").write_text(yaml + self.settings)
        (self.home / "logback.xml").write_text(LOGBACK.format(home=self.home))

    def command(self) -> list[str]:
        """Return the command that starts the node: Java, its flags and Cassandra's main class."""
        home, scratch = self.home, self.home / "tmp"
        flags = [
            f"-Xms{self.heap}",
            f"-Xmx{self.heap}",
            "-Xss384k",
            *self.flags,
            "-XX:MaxDirectMemorySize=1g",
        ]
        flags += ["-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError", "-Djava.net.preferIPv4Stack=true"]
        flags += [
            "-Djdk.attach.allowAttachSelf=true",
            f"-Djna.tmpdir={scratch}",
            f"-Djava.io.tmpdir={scratch}",
        ]
        flags += [
            "-Dio.netty.tryReflectionSetAccessible=true",
            f"-Dcassandra.config=file://{home}/cassandra.yaml",
        ]
        flags += [
            f"-Dcassandra.storagedir={home}",
            f"-Dcassandra.logdir={home}",
            "-Dcassandra-foreground=yes",
        ]
        flags += [f"-Dlogback.configurationFile=file://{home}/logback.xml"]
        # A single node needn't wait for others, which saves about 40 s of the start.
        flags += ["-Dcassandra.skip_wait_for_gossip_to_settle=0", "-Dcassandra.ring_delay_ms=100"]
        flags += [
            "-Dcassandra.superuser_setup_delay_ms=0",
            f"-Dcassandra.available_processors={min(os.cpu_count() or 2, 4)}",
        ]
        flags += [f"--add-exports={name}=ALL-UNNAMED" for name in EXPORTS]
        flags += [f"--add-opens={name}=ALL-UNNAMED" for name in OPENS]
        return [find_java(CASSANDRA), *flags, "-cp", f"{home}:{self.jars}/*", MAIN]

    def healthy(self) -> bool:
        """Send a protocol v4 OPTIONS frame; the answer SUPPORTED (opcode 6) means that CQL is served."""
        try:
            with connected(self.port, self.tls) as connection:
                connection.sendall(struct.pack(">BBhBI", 4, 0, 0, 5, 0))
                return connection.recv(9)[4] == 6
        except (OSError, IndexError):
            return False

    def failure(self) -> str:
        """Return the last line that names an error in the JVM's output, else in Cassandra's own log
        (system.log).
        """
        texts = [
            path.read_text(errors="replace") for path in (self.home / "system.log", self.log) if path.exists()
        ]
        return one_line("\n".join(texts))

    def wipe(self) -> None:
        """Remove all data of the node, which must be stopped."""
        shutil.rmtree(self.home, ignore_errors=True)
