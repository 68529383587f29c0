-- The plugin penstock for Kong: it asks the daemon before a request is passed on. It runs after
-- authentication, where Kong's own rate limiting does.

local penstock = require "penstock"

local plugin = {PRIORITY = 910, VERSION = "0.1.0"}

function plugin:access(config)
  local status, fields = penstock.of(config):decide(config.domain, config.descriptors)
  if status then return kong.response.exit(status, nil, fields) end
end

return plugin
