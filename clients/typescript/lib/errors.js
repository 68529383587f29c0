/**
 * @typedef {object} Details
 * @property {number} [status]
 * @property {string} [type]
 * @property {string} [pointer]
 * @property {number} [retryAfter]
 * @property {unknown} [cause]
 */

export class PenstockError extends Error {
  /**
   * @param {string} message
   * @param {Details} [details]
   */
  constructor(message, details = {}) {
    super(message, { cause: details.cause });
    this.name = new.target.name;
    this.status = details.status ?? 0;
    this.type = details.type ?? "";
    this.pointer = details.pointer ?? "";
  }
}

export class InvalidRequestError extends PenstockError {}

export class ForbiddenError extends PenstockError {}

export class UnknownIDError extends PenstockError {}

export class UnavailableError extends PenstockError {
  /**
   * @param {string} message
   * @param {Details} [details]
   */
  constructor(message, details = {}) {
    super(message, details);
    this.retryAfter = details.retryAfter ?? 0;
  }
}

/**
 * errorOf returns the error of a response that is not a decision.
 *
 * @param {number} status
 * @param {any} problem the body, if it is JSON
 * @param {string | null} retryAfter the header
 */
export function errorOf(status, problem, retryAfter) {
  const details = { status, type: text(problem?.type), pointer: text(problem?.pointer), retryAfter: seconds(retryAfter) };
  const message = text(problem?.detail) || text(problem?.title) || `unexpected response with status ${status}`;
  // A 429 without a decision is that of a proxy, and below 400 there is no daemon.
  if (status >= 500 || status === 429 || status < 400) return new UnavailableError(message, details);
  if (status === 401 || status === 403) return new ForbiddenError(message, details);
  if (details.type.endsWith("#ProblemUnknownID")) return new UnknownIDError(message, details);
  return new InvalidRequestError(message, details);
}

/** @param {unknown} value */
const text = (value) => (typeof value === "string" ? value : "");

/** @param {string | null} header a number of seconds; dates are not used by the daemon */
const seconds = (header) => (header !== null && /^\d{1,9}$/.test(header) ? Number(header) : 0);
