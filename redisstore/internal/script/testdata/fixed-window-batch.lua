local redis, KEYS, ARGV = redis, KEYS, ARGV
local asked, count, period = ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0
local how, keep = ARGV[4], 0
if how and #how > 1 and asked > 0 then how, keep = string.sub(how, 1, 1), string.sub(how, 3) + 0 end
local function step(KEYS, i)
local rest = redis.call('PTTL', KEYS[1])
local used, stale = 0, false
if rest > 0 then
  local text = redis.call('GET', KEYS[1])
  used = tonumber(text)
  if not used or used < 1 or used % 1 ~= 0 then return redis.error_reply('FOREIGN value') end
elseif rest == -1 then
  return redis.error_reply('FOREIGN key without expiry')
end
local found, left = used, rest
if rest > period then rest, stale = period, true end
local free, cost = count - used - keep, asked
if cost > free and cost > 0 then
  if how == 'o' then
    cost = math.min(cost, math.max(free + (ARGV[5] or count), 0))
  elseif how == '1' then
    cost = math.max(free, 0)
  else
    cost = 0
  end
elseif cost < -used then
  cost = -used
end
local after = used + cost
if after == 0 then
  if rest >= 0 then redis.call('DEL', KEYS[1]) end
elseif used == 0 then
  redis.call('SET', KEYS[1], cost, 'PX', ARGV[3])
elseif stale then
  redis.call('SET', KEYS[1], after, 'PX', rest)
elseif cost == asked and cost ~= 0 then
  redis.call('INCRBY', KEYS[1], ARGV[1])
elseif cost ~= 0 then
  redis.call('INCRBY', KEYS[1], cost)
end
if found == 0 then return 0 end -- alone
local both = found * (period + 1) + left -- alone
if left <= period and both < 9007199254740992 then return both end -- alone
return {found, left}, cost, 0
end
local all, n, key = {}, 0, {''}
for i = 1, #KEYS do
  key[1] = KEYS[i]
  local done, reply = pcall(step, key, i)
  if not done or type(reply) == 'table' and reply.err then reply = -2 end
  n = n + 1
  if type(reply) == 'table' then
    all[n] = -3
    for j = 1, #reply do all[n + j] = reply[j] end
    n = n + #reply
  else
    all[n] = reply
  end
end
return all
