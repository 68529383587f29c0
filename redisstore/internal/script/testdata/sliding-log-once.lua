local redis, KEYS, ARGV = redis, KEYS, ARGV
local now, time, rest
local function pttl(KEYS)
  if not now then return redis.call('PTTL', KEYS[1]) end
  local expiry = redis.pcall('PEXPIRETIME', KEYS[1])
  if type(expiry) == 'number' then return expiry < 0 and expiry or math.max(expiry - now, 0) end
  local before, left, after
  repeat
    before, left, after = redis.call('TIME'), redis.call('PTTL', KEYS[1]), redis.call('TIME')
  until left < 0 or before[1] == after[1] and math.floor(before[2] / 1000) == math.floor(after[2] / 1000)
  return left < 0 and left or math.max(before[1] * 1000 + math.floor(before[2] / 1000) + left - now, 0)
end
local function set(KEYS, value, px, left)
  if not left then -- KEEPTTL
    redis.call('SET', KEYS[1], value, px)
  elseif not now then
    redis.call('SET', KEYS[1], value, px, left)
  elseif redis.pcall('SET', KEYS[1], value, 'PXAT', now + left).err then -- before Redis 6.2
    redis.call('SET', KEYS[1], value)
    redis.call('PEXPIREAT', KEYS[1], now + left)
  end
end
local function step(KEYS, ARGV)
local asked, count, period = ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0
local how, keep = ARGV[4], 0
if how and #how > 1 and asked > 0 then how, keep = string.sub(how, 1, 1), string.sub(how, 3) + 0 end
local rest = rest or pttl(KEYS)
local log, len, newest, since, stale = '', 0, 0x31303030, 0, rest == 0
if rest > 0 then
  log = redis.call('GET', KEYS[1])
  len = #log / 4
  if len < 1 or len % 1 ~= 0 then return redis.error_reply('FOREIGN value') end
  newest, since = struct.unpack('>I4', log, #log - 3), period - rest
elseif rest == -1 then
  return redis.error_reply('FOREIGN key without expiry')
end
local present = '1000'
if len > 0 then present = struct.pack('>I4', (newest + since) % 4294967296) end
local function age(i) return since + (newest - struct.unpack('>I4', log, 4 * i - 3)) % 4294967296 end
if since < 0 then
  local past = len - 1
  while past > 0 and age(past) < 0 do past = past - 1 end
  log = string.sub(log, 1, 4 * past) .. string.rep(present, len - past)
  newest, since, rest, stale = struct.unpack('>I4', present), 0, period, true
end
local gone, high, probe = 0, len, 0
while gone < high do
  if age(probe + 1) >= period then gone = probe + 1 else high = probe end
  probe = math.floor((gone + high) / 2)
end
local used, wait = len - gone, 0
local free, cost, last = count - used - keep, asked, len
if ARGV.due then
  local function older(limit)
    local low, top = gone, len
    while low < top do
      local middle = math.floor((low + top) / 2)
      if age(middle + 1) >= limit then low = middle + 1 else top = middle end
    end
    return low
  end
  last = older(period - ARGV.due)
  cost = math.max(cost, older(period - ARGV.due + 1) - last)
end
if how == '1' and cost > free and cost > 0 then cost = math.max(free, 1) end
if cost > free and cost > 0 then
  wait = period - age(gone + cost - free)
  cost = 0
elseif cost < -used then
  cost = -used
end
local charge = cost
if ARGV.dry then charge = 0 end
local reset = 0
if charge > 0 then
  if gone > 0 then log = string.sub(log, 4 * gone + 1) end
  log = log .. string.rep(present, charge)
  reset = period
else
  if charge < 0 then log = string.sub(log, 4 * gone + 1, 4 * (last + charge)) .. string.sub(log, 4 * last + 1) end
  len = #log / 4
  if len > 0 then reset = period - age(len) end
end
used = used + charge
if not ARGV.dry and (cost ~= 0 or stale) then
  if reset > 0 then
    set(KEYS, log, 'PX', reset)
  elseif rest >= 0 then
    redis.call('DEL', KEYS[1])
  end
end
ARGV.due = period
if used == 0 then reset = 0 end
return {ARGV.dry and 0 or cost, used, wait, reset}, cost, 0
end
local last = #ARGV
local unit, how, most, scale = ARGV[last - 1] + 0, ARGV[last], ARGV[last - 2]
local moves = how == 's' or how == 'r'
ARGV[last], ARGV[last - 1], ARGV[last - 2] = nil, nil, nil
if moves then scale, ARGV[last - 3] = ARGV[last - 3] + 0, nil end
rest = redis.call('PTTL', KEYS[1])
local expiry = rest > 0 and redis.pcall('PEXPIRETIME', KEYS[1])
if type(expiry) == 'number' then
now = expiry - rest
else
rest = nil
time = redis.call('TIME')
now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local value, left = redis.call('GET', KEYS[2]), 0
if value then left = pttl({KEYS[2]}) end
if not moves and left ~= -1 and left <= 0 then -- a key lives until after the millisecond of its expiry
  local reply, charged, delay = step(KEYS, ARGV)
  if charged and (charged > 0 or how == 'o') then
    local record = string.format('%d %d %d', charged / unit, now + delay, now + ARGV.due)
    redis.call('SET', KEYS[2], record, 'PX', most)
  end
  return reply
end
local function recall(value, left)
  if left == -1 then return false, redis.error_reply('FOREIGN record without expiry') end
  if left <= 0 then return nil end
  local units, acting, due, owed, refunded = string.match(value, '^(%d+) (%d+) (%d+) ?(%-?%d*)(r?)$')
  if not units then return false, redis.error_reply('FOREIGN record') end
  units = units + 0
  return units, acting, due - now, tonumber(owed) or units, refunded
end
local function update(KEYS, units, acting, due, owed, refunded)
  if owed ~= units then refunded = string.format(' %d', owed) .. refunded end
  local record = string.format('%d %s %d%s', units, acting, now + due, refunded)
  redis.call('SET', KEYS[1], record, 'KEEPTTL')
end
local function move(step, keys, own, units, due, owed, change, unit, scale)
  local open, apart = owed, owed < 0 and due > 0 -- open are units that time has not paid back
  if owed < 0 then open = -1 - owed end
  if due <= 0 then
    open = 0
  elseif scale > 0 then
    open = math.min(open, math.ceil(due * scale / unit))
  end
  if change > 0 then
    own[1] = change * unit
    local reply, charged = step(keys, own)
    if not charged or charged == 0 then return reply, charged, units, due, owed end
    if scale > 0 then
      open = math.min(open, math.floor(math.max(due, 0) * scale / unit))
    elseif own.due ~= due then
      open, apart = 0, apart or open > 0
    end
    open = open + charged / unit
    return reply, charged, units + charged / unit, own.due, apart and -1 - open or open
  end
  local back = math.min(-change, open)
  own[1] = -back * unit
  if back > 0 then
    if scale > 0 then own[1] = -math.min(back * unit, due * scale) end
    own.due = due
  end
  local reply, charged = step(keys, own)
  if back > 0 and scale > 0 then due = math.max(due - math.floor(back * unit / scale), 0) end
  if apart then return reply, charged, units - back, due, -1 - open + back end
  return reply, charged, units + change, due, open - back
end
local units, acting, due, owed, refunded
if value then units, acting, due, owed, refunded = recall(value, left) end
if units == false then return acting end
local cost = ARGV[1] + 0
if not units or how == 'r' and refunded ~= '' then
  ARGV[1] = 0
  return (step(KEYS, ARGV))
end
local found, reply, charged
if not moves then
  found, ARGV[1] = {units, math.max(acting - now, 0)}, 0
  reply = step(KEYS, ARGV)
else
  found = {units, owed, due}
  local change = math.max(cost, -units)
  if how == 's' then change = math.min(cost - units, most + 0) end
  reply, charged, units, due, owed = move(step, KEYS, ARGV, units, due, owed, change, unit, scale)
  if how == 'r' then refunded = 'r' end
  if charged and units == 0 and how == 'r' then
    redis.call('DEL', KEYS[2])
  elseif charged then
    update({KEYS[2]}, units, acting, due, owed, refunded)
  end
end
if type(reply) ~= 'table' then
  found[#found + 1] = reply
  return found
end
if reply.err then return reply end
for _, number in ipairs(reply) do found[#found + 1] = number end
return found
