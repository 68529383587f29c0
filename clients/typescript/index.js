export { Client } from "./lib/client.js";
export {
  ForbiddenError,
  InvalidRequestError,
  PenstockError,
  UnavailableError,
  UnknownIDError,
} from "./lib/errors.js";
