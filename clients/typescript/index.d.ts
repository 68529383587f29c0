/** Client of the penstock daemon. All durations are in seconds. */

/** A request for a key under a limit. */
export interface LimitRequest {
  /** What is limited: a user, an address. Bytes if it is not text. */
  key: string | Uint8Array;
  /** The limit as text, such as "30/1m burst=15". */
  limit: string;
  /** The number of units. Default: 1. */
  cost?: number;
  /** Take what is left if that is less than the cost. */
  atMost?: boolean;
  /** Charge the cost whether or not it is left; the key owes the rest. */
  overdraw?: boolean;
  /** The longest delay with which a bucket may grant the request. */
  maxDelay?: number;
  /** Take only if so many units remain afterwards. */
  keepFree?: number;
  /** How long the ID is remembered, if that is longer than the limit's period. */
  hold?: number;
}

/** A request for a key under a limit that may have an ID. */
export interface TakeRequest extends LimitRequest {
  /** Requests with the same ID, key and limit are charged once. Make it unguessable. */
  id?: string;
}

/** A request by the daemon's rules. All descriptors are granted or none is charged. */
export interface RuleRequest {
  domain: string;
  descriptors: Descriptor[];
  /** The cost of the descriptors that have none of their own. Default: 1. */
  cost?: number;
  /** Requests with the same ID are charged once, and can be settled if the rule has settle. */
  id?: string;
  /** Take what is left under all limits if that is less than the cost. */
  atMost?: boolean;
  /** The longest delay under a rule with a leaky bucket. 0, the default, is any. */
  maxDelay?: number;
  /** Take only if so many units remain, where the rule keeps fewer free. */
  keepFree?: number;
}

export interface Descriptor {
  entries: { key: string; value?: string }[];
  cost?: number;
}

/** A key and a limit, to be read. */
export type PeekRequest = Pick<LimitRequest, "key" | "limit"> | Pick<RuleRequest, "domain" | "descriptors">;

/** What was really used of what was taken under an ID, by a limit or by rules. */
export type Settlement = LimitSettlement | RuleSettlement;

export type LimitSettlement = Pick<LimitRequest, "key" | "limit"> & { cost: number };

/** A descriptor without a cost has that of the settlement. */
export type RuleSettlement = Pick<RuleRequest, "domain" | "descriptors" | "cost">;

/** Units to return: of what was taken under the ID or, with permission, of the key. */
export type RefundRequest =
  | (Pick<LimitRequest, "key" | "limit"> & { cost: number; id?: string })
  | (Pick<RuleRequest, "domain" | "descriptors" | "id"> & { cost: number });

export interface Decision {
  /** Whether the request may proceed. */
  allowed: boolean;
  /** Whether a limit applied. If not, the numbers below are 0. */
  limited: boolean;
  /** The units that were taken; negative for a refund. */
  granted: number;
  /** The most units that can be granted at once. */
  limit: number;
  /** The units that can be taken now. */
  remaining: number;
  /** When the same request is allowed; 0 if it was, null if it never will be. */
  retryAfter: number | null;
  /** When all units are available again; null if never. */
  resetAfter: number | null;
  /** How long to wait before acting on an allowed request. */
  delay: number;
  /** Which part decided. "client" if the daemon made no decision and onUnavailable did. */
  source: "store" | "lease" | "deny-cache" | "fallback" | "override" | "client" | "";
  /** The rule that decided, if any. */
  rule: string;
  /** "shadow" or "quota" if the rule does not deny alone. */
  mode: string;
  /** Why a request can never pass. */
  detail: string;
  /** One for each request of a list, or for each descriptor. */
  decisions: Decision[];
  /** Why the daemon made no decision, if the source is "client". */
  error?: UnavailableError;
}

export interface ClientOptions {
  /** The daemon's token, for refunds without an ID and for limits over its ceilings. */
  token?: string;
  /** How long one attempt may take. Default: 1. */
  timeout?: number;
  /**
   * What take and takeAll do if no decision was made: "allow" fails open, "deny" fails
   * closed, "throw" throws UnavailableError. Default: "throw".
   */
  onUnavailable?: "allow" | "deny" | "throw";
  /** Sends the requests. Default: the global fetch. */
  fetch?: typeof fetch;
}

export interface CallOptions {
  /**
   * Retry for so long: after a denial once its retryAfter has passed, and after an
   * UnavailableError if repeating the request cannot charge it twice. Default: 0.
   */
  wait?: number;
  /**
   * Ends the call, which then rejects with the signal's reason. What settles or refunds goes on
   * without its caller, with all its retries, and so does what was sent of a take under an ID of
   * the program; the next call under that ID waits for it.
   */
  signal?: AbortSignal;
}

export interface TakeAllOptions extends CallOptions {
  /** The ID of all requests together, by which they are charged once and settled. */
  id?: string;
}

export interface SettleAllOptions extends CallOptions {
  id: string;
}

export class Client {
  /** @param address The daemon's HTTP listener, such as "http://localhost:8080". */
  constructor(address: string, options?: ClientOptions);

  /** Takes units. A denial is a decision, not an error. */
  take(request: TakeRequest | RuleRequest, options?: CallOptions): Promise<Decision>;

  /** Takes up to 64 requests, or none of them: all with limits, or all of one domain. */
  takeAll(requests: readonly LimitRequest[] | readonly RuleRequest[], options?: TakeAllOptions): Promise<Decision>;

  /** Makes what was charged under the ID equal to the cost, once that is known. */
  settle(request: Settlement & { id: string }, options?: CallOptions): Promise<Decision>;

  /** Settles what takeAll took under an ID. */
  settleAll(requests: readonly LimitSettlement[] | readonly RuleSettlement[], options: SettleAllOptions): Promise<Decision>;

  /** Reads the state of a key and charges nothing. */
  peek(request: PeekRequest, options?: CallOptions): Promise<Decision>;

  /** Returns units, never more than were taken. Without an ID it needs permission. */
  refund(request: RefundRequest, options?: CallOptions): Promise<Decision>;
}

/** No decision was made. */
export class PenstockError extends Error {
  /** The HTTP status, or 0 if there was no response. */
  readonly status: number;
  /** The type of the problem document, or "". */
  readonly type: string;
  /** The field of the request that is invalid, as a JSON pointer, or "". */
  readonly pointer: string;
}

/** The request is invalid: correct the program. Nothing was charged. */
export class InvalidRequestError extends PenstockError {}

/** A refund without permission, or a limit that the caller may not bring. */
export class ForbiddenError extends PenstockError {}

/** The daemon does not remember the ID. Nothing was charged. */
export class UnknownIDError extends PenstockError {}

/**
 * The daemon cannot be reached in time, or cannot decide. Units may have been taken; a
 * request with an ID can be repeated without being charged twice.
 */
export class UnavailableError extends PenstockError {
  /** When to retry, if the response said so, else 0. */
  readonly retryAfter: number;
}
