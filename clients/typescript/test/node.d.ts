// What the client uses of Node beyond the web's API, so that tsc needs no other package.
declare module "node:crypto" {
  export function randomUUID(): string;
}
