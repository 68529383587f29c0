// Customers hang up on a gateway, which passes the abort on to all that it does, and pays for
// what was generated. Runs against a real daemon, whose address is in PENSTOCK.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { createServer, request as send } from "node:http";

import { Client, UnknownIDError } from "../index.js";

const address = process.env.PENSTOCK;
const patience = { timeout: 60 }; // detects hangs alone
const client = new Client(address, patience);
const limit = "600/31d"; // of which nothing is available again within a test
const estimate = 400;

/** event returns a promise and what resolves it. */
function event() {
  let set;
  const happened = new Promise((resolve) => (set = resolve));
  return { happened, set };
}

async function listen(handler) {
  const server = createServer(handler);
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  const stop = () => (server.closeAllConnections(), server.close());
  return { port: server.address().port, stop };
}

/**
 * startGate runs a proxy before the daemon, on a network at its worst for a caller that gives up:
 * what it has received of a take reaches the daemon also after the caller has closed the
 * connection, and a settlement does not. It holds the first request of a path, or its answer.
 */
async function startGate({ path, when } = {}) {
  const arrived = event(), opened = event(), settled = event();
  let held = path;
  const pass = async (request, at) => {
    if (request.url !== held || at !== when) return;
    held = undefined;
    arrived.set();
    await opened.happened;
  };
  const server = await listen(async (request, response) => {
    let body = "";
    for await (const chunk of request) body += chunk;
    await pass(request, "request");
    if (request.url === "/v1/settle" && response.destroyed) return;
    const forward = send(address + request.url, { method: "POST", headers: { "Content-Type": "application/json" } });
    forward.end(body);
    const [answer] = await once(forward, "response");
    let text = "";
    for await (const chunk of answer) text += chunk;
    await pass(request, "answer");
    response.writeHead(answer.statusCode, { Connection: "close" }).end(text);
    if (request.url === "/v1/settle") settled.set(answer.statusCode);
  });
  return { address: `http://127.0.0.1:${server.port}`, stop: server.stop, arrived, opened, settled };
}

/** startGateway streams tokens up to a number, and ends when it is told to. */
async function startGateway(penstock, customer, tokens, end) {
  const stopped = event(), hungUp = event();
  const server = await listen(async (request, response) => {
    const hangUp = new AbortController();
    const { signal } = hangUp;
    response.on("close", () => (hangUp.abort(new Error("hung up")), hungUp.set()));
    const id = randomUUID();
    let used = 0;
    try {
      await penstock.take({ key: customer, limit, cost: estimate, id }, { signal });
      while (used < tokens) response.write(`data: ${++used}\n\n`);
      stopped.set();
      await Promise.race([end.happened, once(signal, "abort")]);
    } catch (error) {
      assert.equal(error.message, "hung up");
    } finally {
      await penstock.settle({ key: customer, limit, cost: used, id }, { signal, wait: 60 }).catch((error) => {
        assert.ok(signal.aborted, error.message);
      });
      response.end();
    }
  });
  return { ...server, stopped, hungUp };
}

async function within(promise, what) {
  let timer;
  const late = new Promise((_, reject) => (timer = setTimeout(() => reject(new Error(`nothing ${what}`)), patience.timeout * 1000)));
  await Promise.race([promise, late]);
  clearTimeout(timer);
}

/** hangUp hangs up at a point, and checks that what was generated is charged. */
async function hangUp({ tokens, hold, when, ends = false, then = () => {} }) {
  const customer = randomUUID(), end = event();
  if (ends) end.set();
  const gate = await startGate(hold);
  const gateway = await startGateway(new Client(gate.address, patience), customer, tokens, end);
  try {
    const call = send({ port: gateway.port, path: "/" });
    call.on("error", () => {}).on("response", (response) => response.on("error", () => {}).resume());
    call.end();
    await within(when(gate, gateway), "happened before hanging up");
    call.destroy();
    then(end);
    if (hold) {
      await within(gateway.hungUp.happened, "noticed that the customer hung up");
      await new Promise((resolve) => setTimeout(resolve, 100)); // for the gate to notice; if it takes longer, the test is a weaker one
      gate.opened.set();
    }
    await within(gate.settled.happened, "was settled");
    assert.equal(600 - (await client.peek({ key: customer, limit })).remaining, tokens);
  } finally {
    gate.stop();
    gateway.stop();
  }
}

const stopped = (gate, gateway) => gateway.stopped.happened;
const arrived = (gate) => gate.arrived.happened;
const tests = {
  "before the first token": { tokens: 0, when: stopped },
  "in the stream": { tokens: 11, when: stopped },
  "as the stream ends": { tokens: 11, when: stopped, then: (end) => end.set() },
  "as the take is sent": { tokens: 0, when: arrived, hold: { path: "/v1/take", when: "request" } },
  "as the take is answered": { tokens: 0, when: arrived, hold: { path: "/v1/take", when: "answer" } },
  "as the settlement is sent": { tokens: 11, when: arrived, ends: true, hold: { path: "/v1/settle", when: "request" } },
  "as the settlement is answered": { tokens: 11, when: arrived, ends: true, hold: { path: "/v1/settle", when: "answer" } },
};

for (const [name, test] of Object.entries(tests)) {
  try {
    await hangUp(test);
    console.log("ok hanging up", name);
  } catch (error) {
    console.log("FAIL hanging up", name, error);
    process.exitCode = 1;
  }
}

/** corrects checks that a correction whose signal is aborted goes on, before what comes under its ID. */
async function corrects(verb) {
  const request = { key: randomUUID(), limit, id: randomUUID() };
  await client.take({ ...request, cost: estimate });
  const left = { settle: 7, settleAll: 7, refund: 0 }[verb];
  const aborted = { signal: AbortSignal.abort(new RangeError("hung up")) };
  const calls = {
    settle: (c) => c.settle({ ...request, cost: 7 }, aborted),
    settleAll: (c) => c.settleAll([{ key: request.key, limit, cost: 7 }], { id: request.id, ...aborted }),
    refund: (c) => c.refund({ ...request, cost: estimate }, aborted),
  };
  await assert.rejects(calls[verb](client), RangeError);
  await assert.rejects(client.settle({ ...request, key: "another", cost: 0 }), UnknownIDError); // under this ID, so after it
  assert.equal(600 - (await client.peek(request)).remaining, left);
}

/** takeIsNotRetried aborts a take while its denial is held. */
async function takeIsNotRetried() {
  const request = { key: randomUUID(), limit: "1/1s" };
  await client.take(request);
  const gate = await startGate({ path: "/v1/take", when: "answer" });
  const penstock = new Client(gate.address, patience);
  const hangUp = new AbortController(), id = randomUUID();
  const taking = penstock.take({ ...request, id }, { wait: 60, signal: hangUp.signal });
  await within(gate.arrived.happened, "arrived");
  hangUp.abort(new RangeError("hung up"));
  await assert.rejects(taking, RangeError);
  gate.opened.set();
  await assert.rejects(penstock.settle({ ...request, id, cost: 0 }), UnknownIDError);
  gate.stop();
}

for (const [name, test] of Object.entries({
  "settle goes on": () => corrects("settle"),
  "settleAll goes on": () => corrects("settleAll"),
  "refund goes on": () => corrects("refund"),
  "a take is not retried": takeIsNotRetried,
})) {
  try {
    await test();
    console.log("ok", name, "when its signal is aborted");
  } catch (error) {
    console.log("FAIL", name, error);
    process.exitCode = 1;
  }
}
