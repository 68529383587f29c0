-- The idea: Istio's fixed window, a hash of what is used and when the window
-- ends, in nanoseconds of the caller's clock, with an answer that is kept under a
-- deduplication id and a best effort that grants what is left. Nanoseconds are
-- more than a Lua number holds, and the id's key is not among KEYS.
--
-- ARGV: credit, window, (bucket), best effort, tokens, moment, id
local credit, window, effort = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[4])
local tokens, moment, id = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local key, record = KEYS[1], nil
if (id or '') ~= '' then
  record = id .. '-' .. key
  local granted = tonumber(redis.call('HGET', record, 'token'))
  local ends = tonumber(redis.call('HGET', record, 'expire'))
  if granted and ends and moment < ends then return {granted, ends - moment} end
end

local used = tonumber(redis.call('HGET', key, 'token'))
local ends = tonumber(redis.call('HGET', key, 'expire'))
if not used or not ends or moment >= ends then
  used, ends = 0, moment + window
  redis.call('HMSET', key, 'token', used, 'expire', ends)
  redis.call('PEXPIRE', key, window / 1000000)
end

local granted = tokens
if used + tokens > credit then
  granted = credit - used
  if effort ~= 1 or granted <= 0 then return {0, 0} end
end
redis.call('HMSET', key, 'token', used + granted)
if record then
  redis.call('HMSET', record, 'token', granted, 'expire', ends)
  redis.call('PEXPIRE', record, math.floor((ends - moment) / 1000000))
end
return {granted, ends - moment}
