// A gateway to a language model that gives each customer 2000 tokens a minute and 20000
// a day. What a completion costs is known only when it is done: the most that it can cost
// is taken first, under an ID and from both budgets or none, and settled when the stream
// ends, also if the customer has hung up. Tokens beyond the estimate become a debt.
//
//   penstock serve
//   node examples/llm-gateway.js
//   curl -N -H 'X-API-Key: ada' -d '{"prompt": "Why is the sky blue?", "max_tokens": 400}' localhost:8090/complete

import { randomUUID } from "node:crypto";
import { createServer } from "node:http";

import { Client } from "../index.js";

// Completions cost money, so a daemon that cannot be reached does not lift the limits. They
// take seconds anyway, so a daemon that is slow is worth waiting for.
const penstock = new Client(process.env.PENSTOCK ?? "http://localhost:8080", { onUnavailable: "deny", timeout: 10 });

// A real gateway looks up a hash of the key in a database. Keys that are not checked
// would have a budget each.
const customers = new Map([["ada", "Ada"], ["bert", "Bert"]]);

// A completion may last longer than the shorter limit remembers its ID, so hold it.
const budgets = (customer) => [
  { key: customer, limit: "2000/1m name=llm-minute", hold: 600 },
  { key: customer, limit: "20000/24h name=llm-day", hold: 600 },
];

const withCost = (requests, cost) => requests.map(({ key, limit }) => ({ key, limit, cost }));

async function complete(request, response) {
  const customer = customers.get(request.headers["x-api-key"]);
  if (!customer) return void response.writeHead(401).end();
  const { prompt, max_tokens: maxTokens = 1000 } = JSON.parse(await bodyOf(request));
  // A customer must not lower the estimate: below 1 it would take nothing.
  if (typeof prompt !== "string" || !(maxTokens >= 1)) throw new RangeError("want a prompt, and max_tokens of at least 1");
  const id = randomUUID();
  const promptTokens = Math.floor(prompt.length / 4) + 1;
  const estimate = budgets(customer).map((budget) => ({ ...budget, cost: promptTokens + maxTokens }));
  const decision = await penstock.takeAll(estimate, { id, wait: 2 });
  if (!decision.allowed) return deny(response, decision);
  let used = promptTokens;
  try {
    response.writeHead(200, { "Content-Type": "text/event-stream" });
    for await (const token of model(prompt, maxTokens)) {
      used++;
      if (response.destroyed) break; // what was generated so far is still paid for
      response.write(`data: ${JSON.stringify(token)}\n\n`);
    }
  } finally {
    await settle(id, withCost(budgets(customer), used));
    response.end();
  }
}

function deny(response, decision) {
  const headers = decision.retryAfter === null ? {} : { "Retry-After": Math.ceil(decision.retryAfter) };
  response.writeHead(decision.error ? 503 : 429, headers).end(decision.detail);
}

// What cannot be settled stays charged as estimated.
async function settle(id, requests) {
  try {
    await penstock.settleAll(requests, { id, wait: 30 });
  } catch (error) {
    console.error("not settled:", id, error.message);
  }
}

async function* model(prompt, maxTokens) {
  const words = `You asked: ${prompt} I do not know, but I say it in many words.`.split(" ");
  for (const word of words.slice(0, maxTokens)) {
    await new Promise((resolve) => setTimeout(resolve, 1));
    yield word;
  }
}

async function bodyOf(request) {
  let text = "";
  for await (const chunk of request.setEncoding("utf8")) {
    text += chunk;
    if (text.length > 1 << 16) throw new RangeError("body too large");
  }
  return text;
}

const server = createServer((request, response) => {
  complete(request, response).catch((error) => {
    if (!response.headersSent) response.writeHead(400);
    response.end(String(error.message));
  });
});
server.listen(Number(process.env.PORT ?? 8090), "127.0.0.1", () => {
  console.log(`listening on http://127.0.0.1:${server.address().port}`);
});
