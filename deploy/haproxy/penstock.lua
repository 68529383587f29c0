-- An action for HAProxy 2.6 and newer that asks penstock about a request:
--
--     http-request lua.penstock http://127.0.0.1:8079/v1/auth?limit=3/1m&key=address:X-Forwarded-For
--
-- It decides nothing itself, but sets variables for the rules after it:
--
--     txn.penstock_status      200 or 429; or what else penstock answered; or 0 without an answer
--     txn.penstock_retry_after, txn.penstock_ratelimit, txn.penstock_ratelimit_policy
--                              the fields of that answer, if it has them

-- timeout is for how long a request waits for an answer, in milliseconds.
local timeout = 2000

-- Fields that are about the client's connection or body, and not about its request.
local dropped = {}
for _, name in ipairs({'connection', 'content-length', 'expect', 'host', 'keep-alive', 'te', 'trailer', 'transfer-encoding', 'upgrade'}) do
  dropped[name] = true
end

-- headersOf returns the client's fields for penstock, so that keys can be taken from them. The
-- client's address and URL are those that HAProxy sees, whatever the client says.
local function headersOf(txn)
  local headers = {}
  for name, values in pairs(txn.http:req_get_headers()) do
    if not dropped[name] then
      headers[name] = {}
      for i = 0, #values do headers[name][i + 1] = values[i] end
    end
  end
  headers['x-forwarded-for'] = {txn.sf:src()}
  headers['x-forwarded-uri'] = {txn.sf:pathq()}
  return headers
end

local function ask(txn, url)
  local answer = core.httpclient():get{url = url, headers = headersOf(txn), timeout = timeout}
  txn:set_var('txn.penstock_status', answer.status or 0)
  for name, variable in pairs({['retry-after'] = 'retry_after', ['ratelimit'] = 'ratelimit', ['ratelimit-policy'] = 'ratelimit_policy'}) do
    local values = answer.headers and answer.headers[name]
    if values then txn:set_var('txn.penstock_' .. variable, values[0]) end
  end
end

core.register_action('penstock', {'http-req'}, function(txn, url)
  txn:set_var('txn.penstock_status', 0)
  local ok, problem = pcall(ask, txn, url)
  if not ok then core.Warning('penstock: ' .. tostring(problem)) end
end, 1)
