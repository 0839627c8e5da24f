"""What `weir up` and `weir status` write and print."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from services.cli.mesh.sites import Laptop
from services.cli.mesh.units import Plan
from services.cli.output import table_lines

KEY_VARIABLES = {
    "acme": "WEIR_KEY_ACME",
    "globex": "WEIR_KEY_GLOBEX",
    "tiny": "WEIR_KEY_TINY",
    "admin": "WEIR_ADMIN_KEY",
}
"""Environment variable by name of the demo key."""


def edge_url(plan: Plan) -> str:
    """The public API."""
    return _tls_url(plan.addresses["envoy"]["address"])


def _tls_url(address: str) -> str:
    # The name that the development certificate carries.
    return f"https://localhost:{address.rpartition(':')[2]}"


def environment(site: Laptop, plan: Plan, keys: Mapping[str, str]) -> dict[str, str]:
    """The variables of `$STATE/env`."""
    edge = plan.addresses["envoy"]
    client = site.tls("demo-client")
    return {
        **({"WEIR_EDGE_URL": f"http://{edge['plain_address']}"} if "plain_address" in edge else {}),
        "WEIR_EDGE_TLS_URL": edge_url(plan),
        "WEIR_ADMIN_URL": _tls_url(edge["admin_address"]),
        "WEIR_CA": client.ca,
        **{variable: keys[name] for name, variable in KEY_VARIABLES.items() if name in keys},
        "GRPC_XDS_BOOTSTRAP": str(site.client_bootstrap),
        "WEIR_CLIENT_CERT": client.cert,
        "WEIR_CLIENT_KEY": client.key,
        "WEIR_STATE_DIR": str(site.state),
        "WEIR_PORT_BASE": str(site.port_base),
    }


def shell(variables: Mapping[str, str]) -> str:
    """The variables as a file to source."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())


def mesh_file(site: Laptop, plan: Plan, status: Mapping[str, Any], profile: str) -> str:
    """Content of `$STATE/mesh.json`: where everything is, for programs."""
    pids = {process["name"]: process["pid"] for process in status["processes"]}
    own = site.operator_tls
    content = {
        "profile": profile,
        "supervisor_pid": status["pid"],
        "services": {name: {**address, "pid": pids.get(name)} for name, address in plan.addresses.items()},
        "edge_url": edge_url(plan),
        "etcd": plan.addresses["etcd"]["address"],
        "blobs": site.blobs,
        "operator": site.operator,
        "tls": {"ca": own.ca, "cert": own.cert, "key": own.key},
        "xds_bootstrap": str(site.client_bootstrap),
    }
    return json.dumps(content, indent=2) + "\n"


def table(rows: Iterable[Mapping[str, Any]], *, wide: bool = False) -> str:
    """The processes of a status as a table."""
    made = [
        (
            row["name"],
            row["state"],
            row["pid"] or None,
            row["restarts"],
            duration(row["uptime_s"]) if row["pid"] else None,
            row.get("address", ""),
        )
        for row in rows
    ]
    columns = ("NAME", "STATE", "PID", "RESTARTS", "UP", "ADDRESS")
    return "\n".join(table_lines(columns, made, wide=wide, least=("ADDRESS", "UP", "PID")))


def duration(seconds: float) -> str:
    """Short text of a duration: "12s", "3m05s", "2h07m"."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def summary(site: Laptop, variables: Mapping[str, str], *, model: str, predicting: str = "", profile: str) -> str:
    """What a person needs next.

    :param predicting: a model of 30 features that predicts; empty: there is none."""
    env = site.state / "env"
    shown = env.relative_to(site.root) if env.is_relative_to(site.root) else env
    keys = "\n".join(f"  {name}={variables[name]}" for name in KEY_VARIABLES.values() if name in variables)
    plain = f"   plain, for tests: {variables['WEIR_EDGE_URL']}" if "WEIR_EDGE_URL" in variables else ""
    return f"""
The mesh is up (profile {profile}).

  edge      {variables["WEIR_EDGE_TLS_URL"]}{plain}
  admin     {variables["WEIR_ADMIN_URL"]}   (both: CA {variables["WEIR_CA"]})
{keys}

  source {shown}

curl:
  curl -N --cacert $WEIR_CA $WEIR_EDGE_TLS_URL/v1/chat/completions -H "authorization: Bearer $WEIR_KEY_ACME" \\
    -H 'content-type: application/json' \\
    -d '{{"model": "{model}", "stream": true, "messages": [{{"role": "user", "content": "Tell me about rivers."}}]}}'

openai:
  import os, ssl, openai
  env = os.environ
  http = openai.DefaultHttpxClient(verify=ssl.create_default_context(cafile=env["WEIR_CA"]))
  client = openai.OpenAI(base_url=env["WEIR_EDGE_TLS_URL"] + "/v1", api_key=env["WEIR_KEY_ACME"], http_client=http)
  for chunk in client.chat.completions.create(model="{model}", stream=True,
          messages=[{{"role": "user", "content": "Tell me about rivers."}}]):
      print(chunk.choices[0].delta.content or "", end="", flush=True)

gRPC inside the mesh, over xDS and mTLS as the workload demo-client (GRPC_XDS_BOOTSTRAP comes from the file above):
  import os, weir.client
  env = os.environ
  tls = weir.client.Tls(ca=env["WEIR_CA"], cert=env["WEIR_CLIENT_CERT"], key=env["WEIR_CLIENT_KEY"])
  async with weir.client.Client("xds:///gateway.weir.internal", tls=tls) as client:
      messages = [{{"role": "user", "content": "Tell me about rivers."}}]
      print((await client.complete("{model}", messages, timeout=30)).text)
  (or a plain stub: weir.inference.v1.inference_pb2_grpc.InferenceServiceStub over libs.rpc.make_channel)

{_predicting(predicting) if predicting else ""}  make status    make logs s=gateway f=1    make down
"""


def _predicting(model: str) -> str:
    return f"""tritonclient (predictions; also http and asyncio, docs/predictions.md):
  import os, numpy, tritonclient.grpc
  env = os.environ
  client = tritonclient.grpc.InferenceServerClient(
      env["WEIR_EDGE_TLS_URL"].removeprefix("https://"), ssl=True, root_certificates=env["WEIR_CA"])
  features = tritonclient.grpc.InferInput("features", [1, 30], "FP32")
  features.set_data_from_numpy(numpy.ones((1, 30), numpy.float32))
  key = {{"authorization": "Bearer " + env["WEIR_KEY_ACME"]}}
  print(client.infer("{model}", [features], headers=key).as_numpy("probability"))
  (or .venv/bin/weir predict {model} FILE --csv)

"""
