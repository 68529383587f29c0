import { InvalidRequestError } from "./errors.js";

/** @typedef {import("../index.js").Decision} Decision */

/** The JSON names of fields that have others here. */
const names = /** @type {Record<string, string>} */ ({ atMost: "at_most", maxDelay: "max_delay", keepFree: "keep_free" });

/**
 * encode returns a request as the daemon reads it. Fields that are undefined are left
 * out, and unknown ones are sent, so that the daemon reports them.
 *
 * @param {object} request
 * @param {Record<string, unknown>} [more] fields that replace those of the request
 */
export function encode(request, more = {}) {
  /** @type {Record<string, unknown>} */
  const body = {};
  for (const [name, value] of Object.entries({ ...request, ...more })) {
    if (name === "key" && value instanceof Uint8Array) body["key_base64"] = base64(value);
    else body[names[name] ?? name] = value;
  }
  return body;
}

/**
 * withCosts returns a request whose descriptors have other costs, where they have their own:
 * these precede the cost of the request, and their sign selects the verb too.
 *
 * @param {object} request
 * @param {(cost: number) => number | undefined} change
 */
export function withCosts(request, change) {
  if (!("descriptors" in request)) return request;
  const descriptors = /** @type {import("../index.js").Descriptor[]} */ (request.descriptors);
  return { ...request, descriptors: descriptors.map((d) => (d.cost === undefined ? d : { ...d, cost: change(d.cost) })) };
}

/** @param {Uint8Array} bytes */
const base64 = (bytes) => btoa(Array.from(bytes, (b) => String.fromCharCode(b)).join(""));

/**
 * checkCost throws unless the cost is an integer of at least min: the sign of a cost
 * selects the verb, so a wrong sign would refund where the program wants to take.
 *
 * @param {unknown} cost
 * @param {number} min
 */
export function checkCost(cost, min) {
  if (!Number.isSafeInteger(cost) || /** @type {number} */ (cost) < min) {
    throw new InvalidRequestError(`cost ${String(cost)}: want an integer of at least ${min}`, { pointer: "#/cost" });
  }
}

/**
 * isDecision reports whether the body of a response is a decision. What else answers, such as
 * a proxy, must not be taken for one.
 *
 * @param {any} body
 * @param {boolean} [nested]
 * @returns {boolean}
 */
export function isDecision(body, nested = false) {
  if (typeof body?.allowed !== "boolean") return false;
  /** @param {unknown} value */
  const isTime = (value) => value === undefined || (typeof value === "number" && value >= 0);
  const counts = [body.granted, body.limit, body.remaining];
  const texts = [body.source, body.rule, body.mode, body.detail];
  const inner = nested ? [] : (body.decisions ?? []);
  return (
    (body.retry_after === null || isTime(body.retry_after)) &&
    (body.reset_after === null || isTime(body.reset_after)) &&
    isTime(body.delay) &&
    counts.every((count) => count === undefined || typeof count === "number") &&
    texts.every((text) => text === undefined || typeof text === "string") &&
    Array.isArray(inner) &&
    inner.every((d) => isDecision(d, true))
  );
}

/**
 * decode returns a decision of the daemon.
 *
 * @param {any} body
 * @returns {Decision}
 */
export function decode(body) {
  return {
    allowed: body.allowed,
    limited: body.granted !== undefined,
    granted: body.granted ?? 0,
    limit: body.limit ?? 0,
    remaining: body.remaining ?? 0,
    retryAfter: body.retry_after === undefined ? (body.allowed ? 0 : null) : body.retry_after,
    resetAfter: body.reset_after === undefined ? 0 : body.reset_after,
    delay: body.delay ?? 0,
    source: body.source ?? "",
    rule: body.rule ?? "",
    mode: body.mode ?? "",
    detail: body.detail ?? "",
    decisions: (body.decisions ?? []).map(decode),
  };
}

/**
 * substitute returns the decision in place of one that was not made.
 *
 * @param {boolean} allowed
 * @param {import("./errors.js").UnavailableError} error
 * @param {number} requests how many decisions it has inside
 * @returns {Decision}
 */
export function substitute(allowed, error, requests) {
  const d = { ...decode({ allowed }), source: /** @type {const} */ ("client"), error };
  d.retryAfter = allowed ? 0 : Math.max(1, error.retryAfter);
  return { ...d, decisions: Array.from({ length: requests }, () => ({ ...d })) };
}
