local redis, KEYS, ARGV = redis, KEYS, ARGV
local sub, asked, count = string.sub, tonumber(ARGV[1]) or -math.huge, ARGV[2] + 0
local how, keep = ARGV[3], 0
if #how > 1 and asked > 0 then how, keep = sub(how, 1, 1), sub(how, 3) + 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local length, close = tonumber(ARGV[6]), false
local clocked = length
if clocked then
  close = now - (now - ARGV[7]) % length + length
else
  for i = 7, #ARGV - 1 do
    if ARGV[i] + 0 <= now and now < ARGV[i + 1] + 0 then
      close = tonumber(ARGV[i + 1])
      length = close - ARGV[i]
    end
  end
  if not close then return {-1, 0, now} end
end
local match = string.match
local current = close % 1000 == 0 and '^' .. string.format('%.0f', close / 1000) .. '(%d%d%d%d%d%d%d%d%d)$'
local function step(KEYS, i)
local value = redis.call('GET', KEYS[1])
local used, finish, over, stale, whole = 0, close, true, false, false
local units = value and current and match(value, current)
if units then
  used, over, whole = units + 0, false, true
elseif value then
  local ending, counted = match(value, '^(%d%d%d%d%d%d%d%d%d%d)(%d%d%d%d%d%d%d%d%d)$')
  if ending then
    ending = ending * 1000
  else
    counted, ending = match(value, '^(%d+) (%d+)$')
  end
  if not ending then return redis.error_reply('FOREIGN value') end
  if ending + 0 > now then used, finish, over = counted + 0, ending + 0, false end
end
local found, ending = used, finish
if finish > now + length then finish, stale = now + length, true end
local free, cost = count - used - keep, asked
if cost > free and cost > 0 then
  if how == 'o' then
    cost = math.min(cost, math.max(free + ARGV[4], 0))
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
  if value and (not over or ARGV[1] == 'all') then redis.call('DEL', KEYS[1]) end
elseif whole and not stale and after < 1000000000 then
  if cost == asked and cost ~= 0 then
    redis.call('INCRBY', KEYS[1], ARGV[1]) -- it is text already
  elseif cost ~= 0 then
    redis.call('INCRBY', KEYS[1], cost)
  end
elseif cost ~= 0 or stale then
  local text, left = string.format('%.0f %.0f', after, finish), finish - now
  if finish % 1000 == 0 and finish >= 1000000000000 and finish < 9223372036000 and after < 1000000000 then
    text = string.format('%.0f%09.0f', finish / 1000, after)
  end
  left = left + math.floor(length * ARGV[5] / 1000)
  redis.call('SET', KEYS[1], text, 'PX', left)
end
local both = found * (length + 1) + (ending - now) -- alone
if clocked and ending - now <= length and both < 9007199254740992 then return both end -- alone
return {found, ending, now}, cost, 0
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
