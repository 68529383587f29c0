// Checked by tsc and never run: the declarations are what the implementation has, and
// wrong programs do not compile.
import * as declared from "../index.js";
import * as implemented from "../lib/client.js";
import * as errors from "../lib/errors.js";

export const client: typeof declared.Client = implemented.Client;
export const unavailable: new (message: string) => declared.UnavailableError = errors.UnavailableError;
export const invalid: new (message: string) => declared.InvalidRequestError = errors.InvalidRequestError;

export async function programs(c: declared.Client): Promise<number | null> {
  await c.take({ key: "user:42", limit: "2/1m", cost: 2, id: "a7f3", atMost: true }, { wait: 5 });
  await c.take({ domain: "shop", descriptors: [{ entries: [{ key: "user", value: "42" }] }] });
  await c.take({ domain: "shop", descriptors: [{ entries: [{ key: "user" }] }], atMost: true, maxDelay: 2, keepFree: 3 });
  await c.takeAll([{ key: "a", limit: "2/1m" }, { key: new Uint8Array([255]), limit: "9/1h" }], { id: "a7f3" });
  await c.settle({ key: "a", limit: "2/1m", id: "a7f3", cost: 1 });
  await c.settle({ domain: "shop", descriptors: [{ entries: [{ key: "team", value: "9" }] }], id: "a7f3", cost: 1 });
  await c.peek({ key: "a", limit: "2/1m" });
  // @ts-expect-error the ID is required
  await c.settle({ key: "a", limit: "2/1m", cost: 1 });
  // @ts-expect-error the amount that was used is required
  await c.settle({ key: "a", limit: "2/1m", id: "a7f3" });
  // @ts-expect-error a list has limits or rules
  await c.takeAll([{ key: "a", limit: "2/1m" }, { domain: "shop", descriptors: [] }]);
  const decision = await c.take({ key: "a", limit: "2/1m" });
  return decision.retryAfter;
}
