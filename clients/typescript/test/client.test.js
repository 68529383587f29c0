// Runs against a real daemon, whose address is in PENSTOCK. The program that starts this
// one also kills and starts the daemon: a line "kill" or "start" on standard output asks
// for it, and an empty line on standard input says that it is done.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createServer, request as send } from "node:http";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

import * as penstock from "../index.js";

const address = process.env.PENSTOCK;
const patience = { timeout: 60 }; // detects hangs alone
const client = new penstock.Client(address, patience);
const replies = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

async function daemon(action) {
  console.log(action);
  await replies.next();
}

/** answering runs a server that always answers the same. */
async function answering(body, use) {
  const requests = [];
  const server = createServer((request, response) => {
    requests.push(request.url);
    request.resume().on("end", () => response.end(body));
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  try {
    await use(`http://127.0.0.1:${server.address().port}`, requests);
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

const tests = {
  async "programs in CommonJS can require it"() {
    assert.equal(createRequire(import.meta.url)("../index.js").Client, penstock.Client);
  },

  async "take charges and denies"() {
    const request = { key: "take", limit: "2/1h" };
    const first = await client.take(request);
    assert.deepEqual([first.allowed, first.granted, first.limit, first.remaining], [true, 1, 2, 1]);
    assert.deepEqual([first.limited, first.retryAfter, first.source], [true, 0, "store"]);
    const denied = await client.take({ ...request, cost: 2 });
    assert.equal(denied.allowed, false);
    assert.ok(denied.retryAfter > 1700 && denied.retryAfter <= 1800, `retry after ${denied.retryAfter}`);
    const never = await client.take({ ...request, cost: 3 }, { wait: 3600 });
    assert.deepEqual([never.allowed, never.retryAfter], [false, null]);
    assert.match(never.detail, /never/);
  },

  async "take sends every field"() {
    const limit = "10/24h";
    assert.equal((await client.take({ key: "fields", limit, cost: 30, atMost: true })).granted, 10);
    assert.equal((await client.take({ key: "fields", limit, cost: 5, overdraw: true })).granted, 5);
    assert.ok((await client.take({ key: "fields", limit, maxDelay: 80000 })).delay > 0);
    assert.equal((await client.take({ key: "free", limit, cost: 6, keepFree: 5 })).allowed, false);
    const bytes = new Uint8Array([0, 255, 128]);
    assert.equal((await client.take({ key: bytes, limit })).remaining, 9);
    assert.equal((await client.peek({ key: bytes, limit })).remaining, 9);
  },

  async "take goes by rules"() {
    const request = { domain: "shop", descriptors: [{ entries: [{ key: "phone", value: "ts" }] }, { entries: [{ key: "colour" }] }] };
    assert.equal((await client.take({ ...request, keepFree: 5 })).allowed, false);
    const decision = await client.take(request);
    assert.equal(decision.decisions[0].rule, "shop/phone");
    assert.deepEqual([decision.decisions[1].allowed, decision.decisions[1].limited], [true, false]);
    assert.equal((await client.peek(request)).remaining, decision.remaining);
    assert.equal((await client.take({ ...request, cost: 9, atMost: true, maxDelay: 1 })).granted, 4);
  },

  async "peek and refund replace the costs of descriptors"() {
    const descriptors = [{ entries: [{ key: "team", value: "costs-ts" }], cost: 700 }];
    const request = { domain: "shop", descriptors, cost: 1 };
    assert.equal((await client.take(request)).granted, 700);
    assert.equal((await client.peek(request)).decisions[0].granted, 0);
    const permitted = new penstock.Client(address, { ...patience, token: process.env.TOKEN });
    const refunded = await permitted.refund(request);
    assert.ok(refunded.decisions[0].granted < -600, `granted ${refunded.decisions[0].granted}`);
    const negative = { ...request, descriptors: [{ ...descriptors[0], cost: -700 }] };
    await assert.rejects(permitted.refund(negative), penstock.InvalidRequestError);
  },

  async "malformed answers are unavailable"() {
    const bodies = ['{"allowed":true,"decisions":{}}', '{"allowed":true,"decisions":[null]}', '{"allowed":false,"retry_after":"soon"}',
      '{"allowed":false,"retry_after":-5}', '{"allowed":true,"granted":"1"}', '{"allowed":true,"source":7}', '{"allowed":1}', "[".repeat(200000), "nonsense"];
    for (const body of bodies) {
      await answering(body, async (url) => {
        const decision = await new penstock.Client(url, { ...patience, onUnavailable: "deny" }).take({ key: "k", limit: "1/1h" }, { wait: 0.02 });
        assert.deepEqual([decision.allowed, decision.source], [false, "client"], body.slice(0, 80));
      });
    }
  },

  async "a retry pauses whatever the answer says"() {
    await answering('{"allowed":false,"retry_after":0}', async (url, requests) => {
      const decision = await new penstock.Client(url, patience).take({ key: "k", limit: "1/1h" }, { wait: 0.2 });
      assert.equal(decision.allowed, false);
      assert.ok(requests.length < 25, `${requests.length} requests in 0.2 s`);
    });
  },

  async "takeAll charges all or none"() {
    const requests = [{ key: "all-a", limit: "5/1h" }, { key: "all-b", limit: "1/1h" }];
    assert.equal((await client.takeAll(requests)).allowed, true);
    const denied = await client.takeAll(requests);
    assert.deepEqual(denied.decisions.map((d) => d.allowed), [true, false]);
    assert.equal((await client.peek(requests[0])).remaining, 4);
  },

  async "settle moves the charge to what was used"() {
    const request = { key: "settle", limit: "100/24h", id: "settle-ts" };
    await client.take({ ...request, cost: 40, hold: 7200 });
    assert.equal((await client.settle({ ...request, cost: 15 })).granted, 15);
    assert.equal((await client.settle({ ...request, cost: 15 })).remaining, 85);
    assert.equal((await client.settle({ ...request, cost: 130 })).remaining, 0); // 30 are owed
    await assert.rejects(client.settle({ ...request, id: "unknown", cost: 1 }), penstock.UnknownIDError);
  },

  async "settle goes by rules"() {
    const request = { domain: "shop", descriptors: [{ entries: [{ key: "team", value: "ts" }] }], id: "rules-ts" };
    assert.equal((await client.take({ ...request, cost: 400 })).granted, 400);
    assert.equal((await client.settle({ ...request, cost: 150 })).decisions[0].granted, 150);
    await assert.rejects(client.settle({ ...request, id: "unknown", cost: 1 }), penstock.UnknownIDError);
  },

  async "settleAll settles every limit of an ID"() {
    const requests = [{ key: "each-a", limit: "100/24h" }, { key: "each-b", limit: "50/24h" }];
    await client.takeAll(requests.map((r) => ({ ...r, cost: 30 })), { id: "each-ts" });
    await client.settleAll(requests.map((r) => ({ ...r, cost: 10 })), { id: "each-ts" });
    const remaining = await Promise.all(requests.map(async (r) => (await client.peek(r)).remaining));
    assert.deepEqual(remaining, [90, 40]);
  },

  async "refund returns what was taken"() {
    const request = { key: "refund", limit: "10/24h" };
    await client.take({ ...request, cost: 6, id: "refund-ts" });
    assert.equal((await client.refund({ ...request, cost: 6, id: "refund-ts" })).granted, -6);
    assert.equal((await client.refund({ ...request, cost: 6, id: "refund-ts" })).remaining, 10);
    await assert.rejects(client.refund({ ...request, cost: 1 }), penstock.ForbiddenError);
    const permitted = new penstock.Client(address, { ...patience, token: process.env.TOKEN });
    await client.take({ ...request, cost: 3 });
    assert.equal((await permitted.refund({ ...request, cost: 2 })).remaining, 9);
  },

  async "invalid requests are typed errors"() {
    await assert.rejects(client.take({ key: "k", limit: "1/1minite" }), (error) => {
      assert.ok(error instanceof penstock.InvalidRequestError && error instanceof penstock.PenstockError);
      assert.deepEqual([error.status, error.pointer], [400, "#/limit"]);
      return true;
    });
    for (const cost of [-1, 1.5, NaN, 2 ** 53]) {
      await assert.rejects(client.take({ key: "k", limit: "1/1m", cost }), penstock.InvalidRequestError);
    }
    await assert.rejects(client.refund({ key: "k", limit: "1/1m", cost: -1 }), penstock.InvalidRequestError);
    assert.throws(() => new penstock.Client(address, { onUnavailable: "alow" }), TypeError);
    for (const wrong of ["", "localhost:8080", "redis://localhost:8080", "http://"]) {
      assert.throws(() => new penstock.Client(wrong, { onUnavailable: "allow" }), TypeError);
    }
  },

  async "a long key does not pass a client that fails open"() {
    const open = new penstock.Client("http://127.0.0.1:1", { onUnavailable: "allow" }); // nothing is sent
    await assert.rejects(open.take({ key: "k".repeat(5_000_000), limit: "1/1m" }), penstock.InvalidRequestError);
  },

  async "wait honours retryAfter"() {
    const request = { key: "wait", limit: "20/1s burst=1" };
    await client.take(request);
    let allowed = 0;
    for (let i = 0; i < 3; i++) allowed += (await client.take(request, { wait: 60 })).granted;
    assert.equal(allowed, 3);
    const long = { key: "long", limit: "1/1h" };
    await client.take(long);
    assert.equal((await client.take(long, { wait: 1 })).allowed, false); // at once: a retry would come too late
  },

  async "a lost answer is charged once"() {
    const proxy = await losingProxy(2);
    const lossy = new penstock.Client(proxy.address, patience);
    const request = { key: "lost", limit: "100/24h", cost: 10 };
    await assert.rejects(lossy.take(request), penstock.UnavailableError); // charged, and the answer is lost
    const decision = await lossy.take(request, { wait: 60 });
    assert.deepEqual([decision.allowed, decision.remaining], [true, 80]);
    assert.equal(proxy.seen(), 3);
    proxy.stop();
  },

  async "a lost answer is charged once though the ID is empty"() {
    await stopping(await losingProxy(1), async (proxy) => {
      const request = { key: "empty-id", limit: "100/24h", cost: 10, id: "" };
      const decision = await new penstock.Client(proxy.address, patience).take(request, { wait: 60 });
      assert.deepEqual([decision.allowed, decision.remaining, proxy.seen()], [true, 90, 2]);
    });
  },

  async "a request by rules with an empty ID is not repeated"() {
    await stopping(await losingProxy(1), async (proxy) => {
      const request = { domain: "shop", descriptors: [{ entries: [{ key: "user", value: "empty-ts" }] }], id: "" };
      const lossy = new penstock.Client(proxy.address, patience);
      await assert.rejects(lossy.take(request, { wait: 60 }), penstock.UnavailableError);
      assert.equal(proxy.seen(), 1);
    });
  },

  // The first retry comes after 25 ms, and the daemon would remember the ID for one.
  async "a lost answer is charged once under a limit of a short period"() {
    const request = { key: "short", limit: "1/1ms burst=1000000000", cost: 100_000_000 };
    await stopping(await losingProxy(1), async (proxy) => {
      const { remaining } = await new penstock.Client(proxy.address, patience).take(request, { wait: 60 });
      assert.ok(remaining >= 900_000_000, `${remaining} remain`);
    });
    await stopping(await losingProxy(1), async (proxy) => {
      const both = [{ ...request, key: "short-a" }, { ...request, key: "short-b" }];
      const { remaining } = await new penstock.Client(proxy.address, patience).takeAll(both, { wait: 60 });
      assert.ok(remaining >= 900_000_000, `${remaining} remain of each`);
    });
  },

  async "a timeout may be as long as the program likes"() {
    const endless = new penstock.Client(address, { timeout: Infinity });
    assert.equal((await endless.peek({ key: "endless", limit: "1/1m" })).remaining, 1);
  },

  async "a signal ends a call"() {
    const request = { key: "signal", limit: "1/1h" };
    await client.take(request);
    const stop = new AbortController();
    const waiting = client.take(request, { wait: 7200, signal: stop.signal });
    setTimeout(() => stop.abort(new RangeError("stopped")), 20);
    await assert.rejects(waiting, RangeError);
  },

  async "a daemon that does not answer is unavailable"() {
    const silent = createServer(() => {}).listen(0, "127.0.0.1");
    await new Promise((resolve) => silent.once("listening", resolve));
    const impatient = new penstock.Client(`http://127.0.0.1:${silent.address().port}`, { timeout: 0.05 });
    await assert.rejects(impatient.peek({ key: "k", limit: "1/1m" }), /no response within 0.05 s/);
    silent.closeAllConnections?.();
    silent.close();
  },

  async "the gateway settles what it has streamed"() {
    await stopping(await startGateway(), checkGateway);
  },

  async "an outage is decided by the caller's choice, and a retry outlives it"() {
    const request = { key: "outage", limit: "100/24h", cost: 10, id: "outage-ts" };
    await client.take(request);
    await daemon("kill");
    await assert.rejects(client.take(request), penstock.UnavailableError);
    await assert.rejects(client.settle({ ...request, cost: 1 }), penstock.UnavailableError);
    const open = await new penstock.Client(address, { onUnavailable: "allow" }).takeAll([request, request]);
    assert.deepEqual([open.allowed, open.source, open.retryAfter, open.decisions.length], [true, "client", 0, 2]);
    const closed = await new penstock.Client(address, { onUnavailable: "deny" }).take(request);
    assert.deepEqual([closed.allowed, closed.source, closed.retryAfter], [false, "client", 1]);
    assert.ok(closed.error instanceof penstock.UnavailableError);
    const retried = client.take(request, { wait: 120 });
    await daemon("start");
    assert.deepEqual([(await retried).allowed, (await retried).remaining], [true, 90]);
    // On Redis this is one charge of before and after the restart.
    const settled = await client.settle({ ...request, cost: 4 }, { wait: 120 });
    assert.equal(settled.remaining, 96);
  },
};

async function checkGateway(gateway) {
  const before = await client.peek({ key: "Ada", limit: "20000/24h name=llm-day" });
  const answer = await fetch(`${gateway.address}/complete`, {
    method: "POST", headers: { "X-API-Key": "ada" }, body: JSON.stringify({ prompt: "Why is the sky blue?", max_tokens: 400 }),
  });
  const tokens = (await answer.text()).split("\n\n").length - 1;
  assert.ok(answer.status === 200 && tokens > 5, `status ${answer.status}, ${tokens} tokens`);
  // The stream ends after the settlement: 6 tokens of the prompt, and those streamed, of
  // which one is available again every four seconds.
  const after = await client.peek({ key: "Ada", limit: "20000/24h name=llm-day" });
  const spent = before.remaining - after.remaining;
  assert.ok(spent > 0 && spent <= 6 + tokens, `${spent} of ${tokens} tokens were charged`);
  const tooMuch = await fetch(`${gateway.address}/complete`, {
    method: "POST", headers: { "X-API-Key": "ada" }, body: JSON.stringify({ prompt: "", max_tokens: 2000 }),
  });
  assert.equal(tooMuch.status, 429);
  const free = await fetch(`${gateway.address}/complete`, {
    method: "POST", headers: { "X-API-Key": "ada" }, body: JSON.stringify({ prompt: "free", max_tokens: -2 }),
  });
  assert.equal(free.status, 400);
}

// stopping runs a check and stops what it uses, also if it fails.
async function stopping(program, check) {
  try {
    await check(program);
  } finally {
    program.stop();
  }
}

// losingProxy forwards requests to the daemon and drops the first answers.
async function losingProxy(drop) {
  let seen = 0;
  const server = createServer((request, response) => {
    const lose = ++seen <= drop;
    const forward = send(address + request.url, { method: "POST", headers: request.headers }, (answer) => {
      answer.on("end", () => lose && request.socket.destroy());
      if (lose) answer.resume();
      else answer.pipe(response.writeHead(answer.statusCode, answer.headers));
    });
    request.pipe(forward);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const stop = () => (server.closeAllConnections?.(), server.close());
  return { address: `http://127.0.0.1:${server.address().port}`, seen: () => seen, stop };
}

async function startGateway() {
  const file = new URL("../examples/llm-gateway.js", import.meta.url).pathname;
  const gateway = spawn(process.execPath, [file], { env: { ...process.env, PORT: "0" }, stdio: ["ignore", "pipe", "inherit"] });
  for await (const line of createInterface({ input: gateway.stdout })) {
    return { address: line.replace("listening on ", ""), stop: () => gateway.kill() };
  }
  throw new Error("the gateway did not start");
}

for (const [name, test] of Object.entries(tests)) {
  try {
    await test();
    console.log("ok", name);
  } catch (error) {
    console.log("FAIL", name, error);
    process.exitCode = 1;
  }
}
process.stdin.destroy();
