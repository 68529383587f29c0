import { randomUUID } from "node:crypto";

import { errorOf, InvalidRequestError, UnavailableError } from "./errors.js";
import { checkCost, decode, encode, isDecision, substitute, withCosts } from "./wire.js";

/**
 * @typedef {import("../index.js").CallOptions} CallOptions
 * @typedef {import("../index.js").Decision} Decision
 * @typedef {import("../index.js").LimitRequest} LimitRequest
 * @typedef {import("../index.js").RuleRequest} RuleRequest
 *
 * @typedef {object} Call
 * @property {string} path
 * @property {object} body
 * @property {boolean} repeatable whether sending it twice charges it once
 * @property {string | undefined} [id] under which the program can correct what it charges
 */

/** The longest sleep that setTimeout can do, in seconds. */
const longestSleep = 2 ** 31 / 1000 - 1;

/** The shortest pause before a retry, in seconds, whatever the answer says. */
const shortestPause = 0.01;

/** The longest time for which the daemon remembers an ID, in seconds. */
const longestHold = 24 * 60 * 60;

/**
 * The longest body that the daemon reads, in bytes. On more it closes the connection, which would
 * look as if it were unavailable: then a long key, which a user may choose, would pass a client
 * with onUnavailable "allow".
 */
const maxBody = 64 * 1024;

/**
 * parseAddress refuses what fetch would fail at: with onUnavailable "allow", a wrong address
 * would lift every limit.
 *
 * @param {string} address
 * @returns {URL}
 */
function parseAddress(address) {
  if (!/^https?:\/\//i.test(address)) {
    throw new TypeError(`address ${address}: want http://HOST:PORT or https://HOST:PORT`);
  }
  return new URL(address);
}

export class Client {
  /** @type {string} */ #address;
  /** @type {Record<string, string>} */ #headers;
  /** @type {number} */ #timeout;
  /** @type {"allow" | "deny" | "throw"} */ #onUnavailable;
  /** @type {typeof fetch} */ #fetch;
  /** @type {Map<string, Promise<unknown>>} by ID, the last that goes on without its caller */ #orphans = new Map();

  /**
   * @param {string} address
   * @param {import("../index.js").ClientOptions} [options]
   */
  constructor(address, options = {}) {
    this.#address = parseAddress(address).href.replace(/\/+$/, "");
    this.#headers = { "Content-Type": "application/json" };
    if (options.token) this.#headers["Authorization"] = `Bearer ${options.token}`;
    this.#timeout = options.timeout ?? 1;
    this.#onUnavailable = options.onUnavailable ?? "throw";
    if (!["allow", "deny", "throw"].includes(this.#onUnavailable)) {
      throw new TypeError(`onUnavailable ${this.#onUnavailable}: want allow, deny or throw`);
    }
    this.#fetch = options.fetch ?? ((url, init) => fetch(url, init));
  }

  /**
   * @param {import("../index.js").TakeRequest | RuleRequest} request
   * @param {CallOptions} [options]
   */
  take(request, options = {}) {
    const id = "id" in request ? request.id : "";
    const requests = "descriptors" in request ? request.descriptors.length : 0;
    return this.#take([request], id, options, (bodies) => bodies[0] ?? {}, requests);
  }

  /**
   * @param {readonly LimitRequest[] | readonly RuleRequest[]} requests
   * @param {import("../index.js").TakeAllOptions} [options]
   */
  takeAll(requests, options = {}) {
    return this.#take(requests, options.id, options, listOf, requests.length);
  }

  /**
   * #take sends requests under one ID: a retry without one could be charged twice. An empty
   * one is none. Only rules with settle take one, so requests by rules have that of the
   * program or none.
   *
   * @param {readonly object[]} requests
   * @param {string | undefined} id
   * @param {CallOptions} options
   * @param {(bodies: object[]) => object} bodyOf
   * @param {number} decisions how many a substitute has
   * @returns {Promise<Decision>}
   */
  async #take(requests, id, options, bodyOf, decisions) {
    for (const request of requests) checkCosts(request);
    const byLimit = requests.every((request) => "limit" in request);
    const known = id;
    if (!id && byLimit && options.wait) id = randomUUID();
    const hold = byLimit && options.wait ? this.#hold(options.wait) : 0;
    const bodies = requests.map((request) => encode(request, id ? { id, ...longer(request, hold) } : {}));
    try {
      return await this.#call({ path: "/v1/take", body: bodyOf(bodies), repeatable: Boolean(id), id: known }, options);
    } catch (error) {
      if (!(error instanceof UnavailableError) || this.#onUnavailable === "throw") throw error;
      return substitute(this.#onUnavailable === "allow", error, decisions);
    }
  }

  /**
   * #hold returns how long the daemon must remember an ID so that the last retry finds it:
   * without that it forgets the ID after one period of the limit, which may be shorter.
   *
   * @param {number} wait
   */
  #hold(wait) {
    return Math.min(wait + this.#timeout, longestHold);
  }

  /**
   * @param {import("../index.js").Settlement & { id: string }} request
   * @param {CallOptions} [options]
   */
  async settle(request, options = {}) {
    checkCosts(request);
    return this.#correct({ path: "/v1/settle", body: encode(request), repeatable: true }, request.id, options);
  }

  /**
   * @param {readonly import("../index.js").Settlement[]} requests
   * @param {import("../index.js").SettleAllOptions} options
   */
  async settleAll(requests, options) {
    for (const request of requests) checkCosts(request);
    const body = listOf(requests.map((request) => encode(request, { id: options.id })));
    return this.#correct({ path: "/v1/settle", body, repeatable: true }, options.id, options);
  }

  /**
   * @param {import("../index.js").PeekRequest} request
   * @param {CallOptions} [options]
   */
  async peek(request, options = {}) {
    return this.#call({ path: "/v1/take", body: encode(withCosts(request, () => undefined), { cost: 0 }), repeatable: true }, options);
  }

  /**
   * @param {import("../index.js").RefundRequest} request
   * @param {CallOptions} [options]
   */
  async refund(request, options = {}) {
    checkCost(request.cost, 1);
    checkCosts(request);
    const body = encode(withCosts(request, (cost) => -cost), { cost: -request.cost });
    const id = "id" in request ? request.id : undefined;
    return this.#correct({ path: "/v1/take", body, repeatable: Boolean(id) }, id, options);
  }

  /**
   * #correct sends a call that corrects a charge. The signal is often that of a customer who has
   * hung up, which must not leave the charge as it is: it ends only the wait for the answer.
   *
   * @param {Call} call
   * @param {string | undefined} id
   * @param {CallOptions} options
   * @returns {Promise<Decision>}
   */
  #correct(call, id, { wait, signal }) {
    return this.#outlive(id, signal, () => this.#call(call, wait === undefined ? {} : { wait }));
  }

  /**
   * #outlive does work that goes on when the signal is aborted, after what does so under the
   * same ID.
   *
   * @template T
   * @param {string | undefined} id
   * @param {AbortSignal | undefined} signal
   * @param {() => Promise<T>} work
   * @returns {Promise<T>}
   */
  async #outlive(id, signal, work) {
    const before = id ? this.#orphans.get(id) : undefined;
    const done = before ? before.then(work) : work();
    if (!signal) return done;
    if (!id) return unlessAborted(signal, done, () => {});
    let ended = false;
    const orphan = done.catch(() => {}).then(() => {
      ended = true;
      if (this.#orphans.get(id) === orphan) this.#orphans.delete(id);
    });
    return unlessAborted(signal, done, () => {
      if (!ended) this.#orphans.set(id, orphan);
    });
  }

  /**
   * #call sends a call until it is allowed, cannot be retried, or its time is over.
   *
   * @param {Call} call
   * @param {CallOptions} options
   * @returns {Promise<Decision>}
   */
  async #call(call, { wait = 0, signal }) {
    const end = now() + wait;
    for (let attempt = 0; ; attempt++) {
      signal?.throwIfAborted();
      const outcome = call.id ? await this.#outlive(call.id, signal, () => this.#attempt(call, undefined)) : await this.#attempt(call, signal);
      const pause = outcome instanceof UnavailableError ? backoff(outcome, attempt) : outcome.retryAfter;
      const retry = outcome instanceof UnavailableError ? call.repeatable : !outcome.allowed;
      if (!retry || pause === null || now() + pause > end) {
        if (outcome instanceof UnavailableError) throw outcome;
        return outcome;
      }
      await sleep(Math.max(pause, shortestPause), signal);
    }
  }

  /**
   * #attempt sends a call once. It returns the errors after which a retry can help, and
   * throws the others.
   *
   * @param {Call} call
   * @param {AbortSignal | undefined} signal
   * @returns {Promise<Decision | UnavailableError>}
   */
  async #attempt(call, signal) {
    const { response, body, failure } = await this.#post(call, signal);
    if (!response) return failure;
    if ((response.status === 200 || response.status === 429) && isDecision(body)) return decode(body);
    const error = errorOf(response.status, body, response.headers.get("Retry-After"));
    if (error instanceof UnavailableError) return error;
    throw error;
  }

  /**
   * #post sends a call and reads the response within the timeout.
   *
   * @param {Call} call
   * @param {AbortSignal | undefined} signal
   */
  async #post(call, signal) {
    const body = JSON.stringify(call.body);
    if (body.length > maxBody) throw new InvalidRequestError(`the request has ${body.length} characters: want at most ${maxBody} bytes`);
    const controller = new AbortController();
    const cancel = () => controller.abort(signal?.reason);
    const timer = setTimeout(() => controller.abort(new Error(`no response within ${this.#timeout} s`)), Math.min(this.#timeout, longestSleep) * 1000);
    signal?.addEventListener("abort", cancel);
    try {
      const response = await this.#fetch(this.#address + call.path, {
        method: "POST",
        headers: this.#headers,
        body,
        redirect: "error", // the token is for the daemon alone
        signal: controller.signal,
      });
      return { response, body: parse(await response.text()) };
    } catch (cause) {
      signal?.throwIfAborted();
      return { failure: new UnavailableError(`penstock unavailable: ${reasonOf(cause)}`, { cause }) };
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", cancel);
    }
  }
}

/**
 * unlessAborted returns what a promise does, or rejects with the signal's reason when that is
 * aborted first.
 *
 * @template T
 * @param {AbortSignal} signal
 * @param {Promise<T>} promise
 * @param {() => void} aborted is called then
 * @returns {Promise<T>}
 */
function unlessAborted(signal, promise, aborted) {
  return new Promise((resolve, reject) => {
    const abort = () => {
      aborted();
      reject(signal.reason);
    };
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", abort));
    if (signal.aborted) abort();
    else signal.addEventListener("abort", abort, { once: true });
  });
}

/**
 * longer returns the hold of a request, if it must be at least this.
 *
 * @param {object} request
 * @param {number} least
 */
function longer(request, least) {
  const hold = "hold" in request && typeof request.hold === "number" ? request.hold : 0;
  return hold < least ? { hold: least } : {};
}

/** @param {object[]} requests */
const listOf = (requests) => ({ mode: "all", requests });

/** @param {object} request a LimitRequest or a RuleRequest */
function checkCosts(request) {
  if ("cost" in request && request.cost !== undefined) checkCost(request.cost, 0);
  if (!("descriptors" in request)) return;
  for (const { cost } of /** @type {RuleRequest} */ (request).descriptors) {
    if (cost !== undefined) checkCost(cost, 0);
  }
}

/** @param {string} text */
function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined; // an error page of a proxy
  }
}

/** @param {any} cause fetch hides the reason of a failure in its cause */
const reasonOf = (cause) => cause?.cause?.code ?? cause?.cause?.message ?? cause?.message ?? String(cause);

/**
 * backoff returns how long to wait after a failure: what the response said or, with
 * jitter, twice as long each time, up to a second.
 *
 * @param {UnavailableError} error
 * @param {number} attempt
 */
function backoff(error, attempt) {
  return error.retryAfter || Math.min(1, 0.05 * 2 ** attempt) * (0.5 + Math.random() / 2);
}

const now = () => performance.now() / 1000;

/**
 * @param {number} duration
 * @param {AbortSignal | undefined} signal
 * @returns {Promise<void>}
 */
function sleep(duration, signal) {
  return new Promise((resolve, reject) => {
    const cancel = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const done = () => {
      signal?.removeEventListener("abort", cancel);
      resolve();
    };
    const timer = setTimeout(done, Math.ceil(Math.min(duration, longestSleep) * 1000));
    if (signal?.aborted) cancel();
    else signal?.addEventListener("abort", cancel, { once: true });
  });
}
