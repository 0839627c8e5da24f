// Reads a streamed answer to its end, whatever dies on the way: the gateway, the edge, the connection.
//
//     WEIR_KEY=wk_… node weir-sse.mjs https://weir.example.org/v1/chat/completions < request.json
//
// Every event has an id. When the stream breaks, the same request with the last id in `Last-Event-ID` goes on behind
// that event, at whatever gateway answers; nothing is said twice, and nothing is billed twice. It needs `fetch` and
// nothing else, in Node (20 or later) and in browsers: copy it.

// What another gateway, or the same one a moment later, can mend.
const LOST = new Set(["worker_lost", "draining", "dependency_unavailable", "preempted", "internal"]);
const BUSY = new Set([429, 502, 503, 504]);

/** The request was refused, or its answer ended with an error. */
export class Refused extends Error {
  constructor(status, error = {}) {
    super(error.message ?? `HTTP ${status}`);
    this.status = status;
    this.code = error.code;
  }
}

/**
 * The answer's events, each once. `tries` in a row may fail; `silence`: milliseconds without a byte that are a failure.
 * Throws Refused, or what `fetch` threw last when nobody was there for so many tries.
 */
export async function* events(url, key, body, { tries = 10, silence = 60_000, fetch = globalThis.fetch } = {}) {
  const content = JSON.stringify({ ...body, stream: true }); // the same bytes every time: the ids are of this request
  const headers = {
    authorization: `Bearer ${key}`,
    "content-type": "application/json",
    "idempotency-key": crypto.randomUUID(), // so that a try before the first event begins nothing twice
  };
  let failed = 0;
  let told = false;
  for (;;) {
    try {
      for await (const [id, event] of once(fetch, url, headers, content, silence)) {
        if (id !== undefined) headers["last-event-id"] = id;
        if (event === undefined) return;
        if (event.error) throw new Refused(200, event.error);
        for (const choice of event.choices) {
          // The error that follows says whether it is the end.
          if (choice.finish_reason === "error") choice.finish_reason = null;
        }
        failed = 0;
        told = true;
        yield event;
      }
      throw new Error("the stream ended too soon");
    } catch (error) {
      failed += 1;
      const mended = !(error instanceof Refused) || LOST.has(error.code) || BUSY.has(error.status);
      // Without an id what came last cannot be gone on with exactly.
      if (!mended || failed >= tries || (told && !headers["last-event-id"])) throw error;
    }
    const pause = Math.random() * Math.min(2000, 50 * 2 ** failed);
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

/** [id if it has one, event] of one connection; undefined instead of the event at the end. */
async function* once(fetch, url, headers, content, silence) {
  const silent = new AbortController();
  let timer;
  const heard = () => {
    clearTimeout(timer);
    timer = setTimeout(() => silent.abort(new Error("silence")), silence);
  };
  try {
    heard();
    const answer = await fetch(url, { method: "POST", headers, body: content, signal: silent.signal });
    if (!answer.ok) throw new Refused(answer.status, (await answer.json().catch(() => ({}))).error);
    const decoder = new TextDecoder();
    let rest = "";
    let id;
    let data = "";
    for await (const chunk of chunks(answer.body)) {
      heard();
      const lines = (rest + decoder.decode(chunk, { stream: true })).split("\n");
      rest = lines.pop();
      for (const raw of lines) {
        const line = raw.replace(/\r$/, "");
        if (line.startsWith("id:")) id = line.slice(3).trim();
        else if (line.startsWith("data:")) data += line.slice(5).trim();
        else if (!line && data) {
          // Only a whole event counts.
          yield [id, data === "[DONE]" ? undefined : JSON.parse(data)];
          [id, data] = [undefined, ""];
        }
      }
    }
  } finally {
    clearTimeout(timer);
    silent.abort();
  }
}

/** Not every browser can iterate over a stream. */
async function* chunks(body) {
  const reader = body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    yield value;
  }
}

if (globalThis.process?.argv[1]?.endsWith("weir-sse.mjs")) {
  const { stdin, stdout, env, argv } = globalThis.process;
  let given = "";
  for await (const piece of stdin) given += piece;
  try {
    for await (const event of events(argv[2], env.WEIR_KEY, JSON.parse(given))) {
      for (const choice of event.choices) if (choice.index === 0) stdout.write(choice.delta.content ?? "");
    }
  } catch (error) {
    console.error(`${error.code ?? error.name}: ${error.message}`);
    globalThis.process.exitCode = 1;
  }
}
