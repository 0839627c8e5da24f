// The official `openai` package for Node, unchanged, against the public edge over TLS. No retries of its own: each test
// sees what the mesh answers.
import assert from "node:assert/strict";
import test from "node:test";
import OpenAI from "openai";

const { WEIR_EDGE_TLS_URL, WEIR_KEY_ACME, WEIR_KEY_TINY } = process.env;
const clientOf = (apiKey) => new OpenAI({ apiKey, baseURL: `${WEIR_EDGE_TLS_URL}/v1`, maxRetries: 0, timeout: 60_000 });
const acme = clientOf(WEIR_KEY_ACME);
const messages = [{ role: "user", content: "What is a weir?" }];
const asked = { model: "weir-fast", messages, temperature: 0, max_tokens: 40 };

/** All of a stream or of a list in pages, in order. */
async function all(iterable) {
  const found = [];
  for await (const each of iterable) found.push(each);
  return found;
}

/** What a promise is rejected with; that it is not is a failure. */
async function refused(promise) {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  assert.fail("it was not refused");
}

test("a chat", async () => {
  const { data: done, response } = await acme.chat.completions.create(asked).withResponse();
  const [choice] = done.choices;
  assert.ok(choice.message.content.split(" ").length >= 5);
  assert.equal(choice.message.role, "assistant");
  assert.ok(["stop", "length"].includes(choice.finish_reason));
  assert.equal(done.object, "chat.completion");
  assert.equal(done.model, "weir-fast@1");
  assert.equal(done.usage.total_tokens, done.usage.prompt_tokens + done.usage.completion_tokens);
  assert.ok(done.id.includes(response.headers.get("x-request-id")));
});

test("a stream says what the whole says, and what it cost", async () => {
  const whole = await acme.chat.completions.create(asked);
  const stream = await acme.chat.completions.create({ ...asked, stream: true, stream_options: { include_usage: true } });
  const chunks = await all(stream);
  const text = chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");
  assert.equal(text, whole.choices[0].message.content);
  assert.ok(chunks.filter((chunk) => chunk.choices[0]?.delta.content).length > 5);
  const ends = chunks.map((chunk) => chunk.choices[0]?.finish_reason).filter(Boolean);
  assert.deepEqual(ends, [whole.choices[0].finish_reason]);
  assert.deepEqual(chunks.at(-1).choices, []);
  assert.deepEqual(chunks.at(-1).usage, whole.usage);
});

test("a stream that is not asked for its usage tells none", async () => {
  const stream = await acme.chat.completions.create({ ...asked, max_tokens: 3, stream: true });
  for await (const chunk of stream) assert.ok(chunk.usage == null && chunk.choices.length === 1);
});

test("the package's own reader of streams puts the answer together", async () => {
  const runner = acme.chat.completions.stream({ ...asked, stream_options: { include_usage: true } });
  const heard = [];
  runner.on("content", (piece) => heard.push(piece));
  const done = await runner.finalChatCompletion();
  assert.equal(done.choices[0].message.content, heard.join(""));
  assert.deepEqual(await runner.totalUsage().then((usage) => usage.completion_tokens), done.usage.completion_tokens);
});

for (const stream of [false, true]) {
  test(`an answer ends before its stop string, ${stream ? "streamed" : "whole"}`, async () => {
    const text = (await acme.chat.completions.create(asked)).choices[0].message.content;
    const word = text.split(" ")[3];
    const stopped = { ...asked, stop: [word, "never said"] };
    let content, reason;
    if (stream) {
      const done = await acme.chat.completions.stream(stopped).finalChatCompletion();
      ({ message: { content }, finish_reason: reason } = done.choices[0]);
    } else {
      ({ message: { content }, finish_reason: reason } = (await acme.chat.completions.create(stopped)).choices[0]);
    }
    assert.equal(content, text.slice(0, text.indexOf(word)));
    assert.equal(reason, "stop");
  });
}

test("a stream that is broken off ends for its reader", async (context) => {
  const long = { ...asked, model: "weir-quality", max_tokens: 900, ignore_eos: true };
  const { data: stream, response } = await acme.chat.completions.create({ ...long, stream: true }).withResponse();
  let pieces = 0;
  for await (const chunk of stream) {
    pieces += chunk.choices[0]?.delta.content ? 1 : 0;
    if (pieces === 3) stream.controller.abort();
  }
  assert.ok(pieces < 900);
  context.diagnostic(`broken off: ${response.headers.get("x-request-id")}`);
});

test("a prompt is completed, streamed and whole", async () => {
  const prompt = { model: "weir-fast", prompt: "The river", max_tokens: 8, temperature: 0 };
  const done = await acme.completions.create(prompt);
  const chunks = await all(await acme.completions.create({ ...prompt, stream: true }));
  assert.equal(chunks.map((chunk) => chunk.choices[0]?.text ?? "").join(""), done.choices[0].text);
});

test("models are listed, page by page, and found", async () => {
  const names = (await all(acme.models.list())).map((model) => model.id);
  assert.ok(names.includes("weir-fast") && names.includes("weir-quality"));
  assert.equal((await acme.models.retrieve("weir-fast")).id, "weir-fast");
});

test("embeddings arrive as numbers, in the encoding that the package asks for", async () => {
  const ask = { model: "weir-quality", input: ["a river", "a river", "an invoice"] };
  const [a, b, c] = (await acme.embeddings.create(ask)).data.map((entry) => entry.embedding);
  const plain = (await acme.embeddings.create({ ...ask, encoding_format: "float" })).data[0].embedding;
  const apart = (left, right) => Math.max(...left.map((value, at) => Math.abs(value - right[at])));
  assert.equal(a.length, plain.length);
  assert.ok(apart(a, b) < 1e-6 && apart(a, plain) < 1e-6 && apart(a, c) > 1e-3);
});

test("401: whoever nobody knows", async () => {
  const error = await refused(clientOf("wk_nobody_nothing").models.list());
  assert.ok(error instanceof OpenAI.AuthenticationError);
  assert.deepEqual([error.status, error.type, error.code], [401, "invalid_request_error", "invalid_api_key"]);
  assert.ok(error.message.length > 10);
});

for (const stream of [false, true]) {
  test(`404: a model that there is not, ${stream ? "streamed" : "whole"}`, async () => {
    const error = await refused(acme.chat.completions.create({ ...asked, model: "no-such-model", stream }));
    assert.ok(error instanceof OpenAI.NotFoundError);
    assert.deepEqual([error.status, error.type, error.code], [404, "invalid_request_error", "model_not_found"]);
    assert.equal(error.param, "model");
    assert.ok(error.requestID);
  });
}

test("400: what cannot be asked, by the name of the field", async () => {
  const error = await refused(acme.chat.completions.create({ ...asked, temperature: 9 }));
  assert.ok(error instanceof OpenAI.BadRequestError);
  assert.deepEqual([error.type, error.param], ["invalid_request_error", "temperature"]);
});

test("429: more than a tenant may, and when to come back", async () => {
  const tiny = clientOf(WEIR_KEY_TINY);
  let error;
  for (let tries = 0; tries < 20 && !error; tries++) {
    error = await tiny.chat.completions.create({ ...asked, max_tokens: 2 }).then(
      () => undefined,
      (fault) => fault,
    );
  }
  assert.ok(error instanceof OpenAI.RateLimitError);
  assert.equal(error.type, "rate_limit_error");
  assert.match(error.code, /^quota_(requests|tokens)$/);
  assert.ok(Number(error.headers.get("retry-after")) >= 1);
  assert.ok(Number(error.headers.get("retry-after-ms")) > 0);
});
