local function step(KEYS, ARGV)
local call, sub, asked, count = redis.call, string.sub, tonumber(ARGV[1]) or -math.huge, ARGV[2] + 0
local how, keep = ARGV[3], 0
if #how > 1 and asked > 0 then how, keep = sub(how, 1, 1), sub(how, 3) + 0 end
local time = call('TIME')
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
local second = close / 1000
local key = KEYS[1]
local value = call('GET', key)
local used, finish, over, stale, whole, overdrawn = 0, close, true, false, false, false
if value and #value == 19 and tonumber(sub(value, 1, 10)) == second then
  used, over, whole = tonumber(sub(value, 11)), false, true
elseif value then
  local ending, counted = string.match(value, '^(%d%d%d%d%d%d%d%d%d%d)(%d%d%d%d%d%d%d%d%d)$')
  if ending then
    ending = ending * 1000
  else
    counted, ending = string.match(value, '^(%d+) (%d+)$')
  end
  if not ending then return redis.error_reply('FOREIGN value') end
  if ending + 0 > now then used, finish, over = counted + 0, ending + 0, false end
end
if not used then return redis.error_reply('FOREIGN value') end
local found, ending = used, finish
if used > count then
  local most = count
  if used >= 4503599627370496 then
    used, most, overdrawn = used - 4503599627370496, count + ARGV[5], true
  end
  if used > most then used, stale = most, true end
end
if finish > now + length then finish, stale = now + length, true end
local free, cost = count - used - keep, asked
if cost > free and cost > 0 then
  if how == 'o' then
    cost = math.min(cost, math.max(free + ARGV[5], 0))
  elseif how == '1' then
    cost = math.max(free, 0)
  else
    cost = 0
  end
elseif cost < -used then
  cost = -used
end
if ARGV.dry then return {found, ending, now}, cost end
local after = used + cost
if after == 0 then
  if value and (not over or ARGV[1] == 'all') then call('DEL', key) end
elseif whole and not stale and after < 1000000000 and cost <= free then
  if cost == asked and cost ~= 0 then
    call('INCRBY', key, ARGV[1]) -- it is text already
  elseif cost ~= 0 then
    call('INCRBY', key, cost)
  end
elseif cost ~= 0 or stale then
  if cost ~= 0 then overdrawn = after > count end
  local text, left = string.format('%.0f %.0f', overdrawn and after + 4503599627370496 or after, finish), finish - now
  if not overdrawn and finish % 1000 == 0 and finish >= 1000000000000 and finish < 9223372036000 and after < 1000000000 then
    text = string.format('%.0f%09.0f', finish / 1000, after)
  end
  call('SET', key, text, 'PX', left + math.floor(length * ARGV[4] / 1000))
end
return {found, ending, now}, cost, 0
end
local function recall(key)
  local rest = redis.call('PTTL', key)
  if rest == -1 then return redis.error_reply('FOREIGN record without expiry') end
  if rest <= 0 then return nil end
  local units, acting, refunded = string.match(redis.call('GET', key), '^(%d+) (%-?%d+)(r?)$')
  if not units then return redis.error_reply('FOREIGN record') end
  return {units = tonumber(units), acting = acting + rest, refunded = refunded, rest = rest}
end
local function remember(key, units, delay, lifetime)
  redis.call('SET', key, string.format('%.0f %.0f', units, delay - lifetime), 'PX', lifetime)
end
local lifetime, unit, own = tonumber(ARGV[1]), tonumber(ARGV[2]), {unpack(ARGV, 4)}
local cost, record = tonumber(own[1]), recall(KEYS[2])
if record and record.err then return record end
local back = 0
local refunds = cost < 0 and record and record.refunded == ''
if refunds then back = math.min(-cost, record.units) end
if cost < 0 then own[1] = -back * unit elseif record then own[1] = 0 end
local reply, charged, delay = step(KEYS, own)
if type(reply) ~= 'table' then reply = {reply} end
if reply.err then return reply end
if charged and refunds then
  if back == record.units then
    redis.call('DEL', KEYS[2])
  else
    redis.call('SET', KEYS[2], string.format('%.0f %.0fr', record.units - back, record.acting - record.rest), 'PX', record.rest)
  end
elseif charged and (charged > 0 or ARGV[3] == 'o' and not record) then
  remember(KEYS[2], charged / unit, delay, lifetime)
end
record = record or {units = -1, acting = 0}
return {cost < 0 and back or record.units, math.max(record.acting, 0), unpack(reply)}
