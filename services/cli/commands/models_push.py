"""`weir models push`, `sign` and `verify`: from a folder to a signed version, and whether one holds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from libs.resources.forms import plain
from services.cli import calls
from services.cli.app import Argument, DryRun, Json, Option, Reason, say
from services.cli.commands.models_check import ask
from services.cli.commands.models_derive import Said, derive
from services.cli.commands.models_registry import (
    Store,
    open_blobs,
    register,
    signing_keys,
    trust_policies,
    version_called,
)
from services.cli.output import failed, print_fields, print_json, terminal_line

_KEY = "--key"
Keys = Annotated[
    Sequence[Path],
    Option(_KEY, help="A private key file, several for several signatures; else the mesh's development key."),
]


def push(
    folder: Annotated[Path, Argument("The model's folder.")],
    predicts: Said,
    name: Annotated[str, Option(help="Its name; else as manifest.json says, or the folder is called.")] = "",
    version: Annotated[str, Option(help="Its version; likewise, of a download the revision.")] = "",
    tier: Annotated[
        str, Option(help="fast or quality; else as its base, the newest of its name, or all of its pool.")
    ] = "",
    pool: Annotated[str, Option(help="The worker pool that serves it; likewise, or the only one.")] = "",
    architecture: Annotated[str, Option(help="Its class in transformers; else as config.json says.")] = "",
    context_length: Annotated[int, Option(least=0, help="Tokens of its context; likewise.")] = 0,
    namespace: Annotated[str, Option(help='Whose keys sign it; empty is "default".')] = "",
    key: Keys = (),
    unsigned: Annotated[bool, Option("--unsigned", help="Do not sign it.")] = False,
    metric: Annotated[
        Sequence[str], Option(help="NAME=VALUE: what it scored offline; may be given several times.")
    ] = (),
    base: Annotated[str, Option(help="The version it was made from, name@version.")] = "",
    max_tokens: Annotated[int, Option(least=0, help="Tokens that a request gets that does not say.")] = 0,
    safety_policy: Annotated[
        Sequence[str], Option(help="ID@VERSION: a safety policy of its requests; may be given several times.")
    ] = (),
    training_data: Annotated[str, Option(metavar="SHA256", help="Digest of the training data.")] = "",
    source_uri: Annotated[str, Option(help="Where the training code or the upstream model is.")] = "",
    revision: Annotated[str, Option(help="Its commit or revision.")] = "",
    builder: Annotated[str, Option(help="What built it.")] = "",
    repair: Annotated[
        bool, Option("--repair", help="Read what the blob store has already, and replace what is damaged.")
    ] = False,
    unchecked: Annotated[
        bool, Option("--unchecked", help="Push it though no engine of its pool can serve it; its record says so.")
    ] = False,
    blobs: Store = "",
    reason: Reason = "",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Make a folder a model version: files to the blob store, signed, registered.

    The folder may be a snapshot in Hugging Face's cache. Whether an engine of its pool can serve it is checked before
    anything is uploaded (`weir models check`); what no engine reads is left out.

    Of a model that predicts the format, inputs and outputs are read out of its file, by a process of its own, and it
    is asked for what it gives for golden rows; what was found out is printed. Pickles are refused.

    Again with the same content nothing happens; other content under a name and version that exist is refused."""
    from libs.artifacts import BlobError, FolderError, Options, PushError, full_name, unread
    from libs.artifacts import push as push_folder
    from libs.artifacts.making import complete
    from libs.artifacts.progress import Meter, size_in_words

    said = Options(
        name=name,
        version=version,
        tier=tier,
        pool=pool,
        architecture=architecture,
        context_length=context_length,
        namespace=namespace,
        max_tokens=max_tokens,
        safety_policies=safety_policy,
        training_data_sha256=training_data,
        metrics=dict(map(_metric, metric)),
        source_uri=source_uri,
        revision=revision,
        builder=builder,
        base=base,
    )
    if unsigned and key:
        raise failed("--unsigned and --key exclude one another")
    keys = [] if unsigned else signing_keys(key)
    there = calls.snapshot("models", "endpoints")
    known, workers = list(there.model_versions.values()), there.endpoints_of("worker")
    store = open_blobs(blobs)

    notes: Sequence[str] = ()
    meter = Meter(time.monotonic, terminal_line)

    async def work(said: Options) -> Any:
        async def put(version: Any, trial: bool) -> Any:
            return register(registry, version, reason=reason, dry_run=trial)

        try:
            return await push_folder(
                folder, store, said, keys, register=put, known=known, dry_run=dry_run, repair=repair, watch=meter
            )
        finally:
            terminal_line("")
            await store.close()

    try:
        with TemporaryDirectory(prefix="weir-push-") as place, calls.service() as registry:
            found = derive(folder, predicts, Path(place))
            if found is not None:
                said, made_up = replace(said, prediction=found.spec, added=found.added), found.lines
            else:
                said, made_up = complete(folder, said, known, {each.pool for each in workers})
            if found is None and not repair:
                why, notes = _checked(folder, said, workers, unchecked)
                said = replace(said, unchecked=why)
            pushed = asyncio.run(work(said))
    except (PushError, FolderError, BlobError) as error:
        raise failed(str(error)) from error
    except OSError as error:
        raise failed(f"{error.filename or folder}: {error.strerror}") from error
    made, uploaded, uploaded_bytes = pushed.version, pushed.uploaded, pushed.uploaded_bytes
    if as_json:
        print_json(
            {**plain(made, unset=True), "uploaded": uploaded, "uploaded_bytes": uploaded_bytes, "dry_run": dry_run}
        )
        return
    print_fields(made_up)
    for path in unread(folder):
        say(f"not sent, since no engine reads it: {path} ({size_in_words((folder / path).stat().st_size)})")
    for note in notes:
        say(f"note: {note}")
    if said.unchecked:
        say(f"though no engine can serve it: {said.unchecked}")
    verb = "would be" if dry_run else "is"
    new = f"{size_in_words(uploaded_bytes)}, {size_in_words(meter.rate)}/s"
    files = f"{len(made.artifacts)} files, {size_in_words(sum(each.bytes for each in made.artifacts))}"
    sent = "" if dry_run else f"; {uploaded} new ({new})" if uploaded else "; none new"
    print(f"{full_name(made)} {verb} registered: {files}{sent}; digest {made.digest[:12]}, {_signed(made)}")


def _checked(folder: Path, said: Any, workers: Sequence[Any], anyway: bool) -> tuple[str, Sequence[str]]:
    """Why no engine of its pool can serve it, where it is to be pushed nevertheless; and what else there is to know.

    :raises SystemExit: none can, and it is not.
    """
    from libs.artifacts.making import context_of
    from libs.artifacts.verdicts import against

    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        return "", ()  # what it adapts was checked
    engines = sorted({each.engine for each in workers if each.pool == said.pool})
    told = ask(folder, context_of(folder, said))
    why = against(told, engines)
    if not why or anyway:
        return "; ".join(why)[:2000], told["notes"]
    whose = f"of pool {said.pool} ({', '.join(engines)})" if engines else "(its pool has no workers yet)"
    raise failed(
        "\n  ".join((f"no engine {whose} can serve {folder}; nothing was uploaded:", *why))
        + "\n--unchecked pushes it nevertheless, and its record says why it cannot be served"
    )


def sign_version(
    name: Annotated[str, Argument(metavar="VERSION", help="Such as weir-fast@2.")],
    key: Keys = (),
    reason: Reason = "",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Sign a registered version, also with a further key; signatures that it has stay."""
    from libs.artifacts import manifest_digest, sign

    version = version_called(name)
    keys = signing_keys(key)
    if not keys:
        raise failed("there is no key to sign with; name a file with --key")
    if manifest_digest(version) != version.digest:
        raise failed(f"{name}: its digest does not fit its content; not signed")
    version.signature = sign(version, *keys)
    with calls.service() as registry:
        made = register(registry, version, reason=reason, dry_run=dry_run)
    if as_json:
        print_json(plain(made, unset=True))
    else:
        print(f"{name}: {_signed(made)}")


def verify_version(
    name: Annotated[str, Argument(metavar="VERSION", help="Such as weir-fast@2.")],
    files: Annotated[bool, Option("--files", help="Read every file in the blob store too.")] = False,
    blobs: Store = "",
    as_json: Json = False,
) -> None:
    """Check a version's digest and signatures as workers do. Exits 1 when something fails."""
    from libs.artifacts import BlobError, FetchError, TrustError, check_blobs, namespace_of, verify

    version = version_called(name)
    trust = trust_policies().get(namespace_of(version))
    fault = ""
    key_ids: tuple[str, ...] = ()
    try:
        key_ids = verify(version, trust, time.time()).key_ids
        if files:
            store = open_blobs(blobs)
            asyncio.run(check_blobs(version, store))
    except TrustError as error:
        fault = error.message
    except (FetchError, BlobError) as error:
        fault = str(error)
    if as_json:
        print_json(
            {"model_version": name, "holds": not fault, "fault": fault, "digest": version.digest, "keys": list(key_ids)}
        )
    elif not fault:
        print_fields(
            (
                ("version", name),
                ("digest", version.digest),
                ("schema", version.schema_sha256),
                ("signed by", [_key_name(trust, key_id) for key_id in key_ids] or "nobody is asked for a signature"),
                ("files", f"{len(version.artifacts)} right" if files else "not read (--files)"),
            )
        )
    if fault:
        if not as_json:
            raise failed(fault)
        raise SystemExit(1)


def _metric(text: str) -> tuple[str, float]:
    name, equals, value = text.rpartition("=")
    try:
        if equals and name:
            return name, float(value)
    except ValueError:
        pass
    raise failed(f"--metric {text}: expected NAME=VALUE, a number")


def _signed(version: Any) -> str:
    from libs.artifacts import signers

    shown = ", ".join(key_id[:12] for key_id in signers(version))
    return f"signed by {shown}" if shown else "not signed"


def _key_name(trust: Any, key_id: str) -> str:
    note = next((key.note for key in trust.keys if key.key_id == key_id), "")
    return f"{key_id[:12]} ({note})" if note else key_id[:12]
