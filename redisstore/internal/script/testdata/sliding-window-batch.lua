local redis, KEYS, ARGV = redis, KEYS, ARGV
local asked, count, period = ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0
local how, keep = ARGV[4], 0
if how and #how > 1 and asked > 0 then how, keep = string.sub(how, 1, 1), string.sub(how, 3) + 0 end
local function step(KEYS, i)
local rest = redis.call('PTTL', KEYS[1])
local value, stale = 0, false
if rest > 0 then
  local text = redis.call('GET', KEYS[1])
  value = tonumber(text)
  if not value or value < 1 or value % 1 ~= 0 then return redis.error_reply('FOREIGN value') end
elseif rest == -1 then
  return redis.error_reply('FOREIGN key without expiry')
end
local current = value % 67108864
local previous = (value - current) / 67108864
local left, kept, overdrawn = rest - period, true, false
if previous >= 67108864 then
  previous, overdrawn = previous - 67108864, left > 0
  if not overdrawn then current = math.min(current, count) end
end
if left <= 0 then previous, current, left, kept = current, 0, rest, false end
if previous == 0 and current == 0 then left, kept = period, false end
if left > period then left, stale = period, true end
local share = 0
if previous > 0 then
  share = math.ceil(previous * left / period)
  if previous * left >= 9007199254740992 then
    local high, low = math.floor(previous / 8192), previous % 8192
    local whole = math.floor(high * left / period)
    share = whole * 8192 + math.ceil(((high * left - whole * period) * 8192 + low * left) / period)
  end
end
local free, cost = count - current - share - keep, asked
if cost > free and cost > 0 then
  if how == 'o' then
    cost = math.min(cost, math.max(free + (ARGV[5] or count), 0))
  elseif how == '1' then
    cost = math.max(free, 0)
  else
    cost = 0
  end
elseif cost < -current - previous then
  cost = -current - previous
end
current = current + cost
if current < 0 then previous, current = previous + current, 0 end
if previous == 0 and current == 0 then
  if rest >= 0 then redis.call('DEL', KEYS[1]) end
elseif cost ~= 0 or stale then
  local after = previous * 67108864 + current
  if cost ~= 0 then overdrawn = (overdrawn or cost > 0) and cost > free and current > 0 end
  if overdrawn then after = after + 4503599627370496 end
  if kept and not stale and cost > 0 and after - value == asked then
    redis.call('INCRBY', KEYS[1], ARGV[1])
  elseif kept and not stale then
    redis.call('INCRBY', KEYS[1], after - value)
  else
    redis.call('SET', KEYS[1], after, 'PX', left + period)
  end
end
if value == 0 then return 0 end -- alone
local both = value * (2 * period + 1) + rest -- alone
if rest <= 2 * period and both < 9007199254740992 then return both end -- alone
return {value, rest}, cost, 0
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
