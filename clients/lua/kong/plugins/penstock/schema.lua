-- The configuration of the plugin; see clients/lua/README.md.

local typedefs = require "kong.db.schema.typedefs"

return {
  name = "penstock",
  fields = {
    {protocols = typedefs.protocols_http},
    {config = {type = "record", fields = {
      {host = {type = "string", required = true}},
      {port = {type = "integer", default = 6380}},
      {username = {type = "string"}},
      {password = {type = "string", referenceable = true}},
      {timeout = {type = "integer", default = 200}},
      {on_failure = {type = "string", default = "allow", one_of = {"allow", "deny"}}},
      {domain = {type = "string", required = true}},
      {descriptors = {type = "array", required = true, elements = {type = "string"}}},
    }}},
  },
}
