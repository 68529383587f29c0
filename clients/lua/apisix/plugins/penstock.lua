-- The plugin penstock for APISIX: it asks the daemon before a request is passed on. It runs after
-- authentication, where APISIX's own limits do.

local core = require "apisix.core"
local penstock = require "penstock"

local schema = {
  type = "object",
  properties = {
    host = {type = "string"},
    port = {type = "integer", default = 6380},
    username = {type = "string"},
    password = {type = "string"},
    timeout = {type = "integer", minimum = 1, default = 200},
    on_failure = {type = "string", enum = {"allow", "deny"}, default = "allow"},
    domain = {type = "string"},
    descriptors = {type = "array", minItems = 1, maxItems = 16, items = {type = "string"}},
  },
  required = {"host", "domain", "descriptors"},
  encrypt_fields = {"password"},
}

local plugin = {version = 0.1, priority = 1004, name = "penstock", schema = schema}

function plugin.check_schema(config)
  return core.schema.check(schema, config)
end

function plugin.access(config)
  local status, fields = penstock.of(config):decide(config.domain, config.descriptors)
  if not status then return end
  for name, value in pairs(fields) do core.response.set_header(name, value) end
  return status
end

return plugin
