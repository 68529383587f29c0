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
local function step(KEYS, ARGV)
local asked, count, period = ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0
local how, keep = ARGV[4], 0
if how and #how > 1 and asked > 0 then how, keep = string.sub(how, 1, 1), string.sub(how, 3) + 0 end
local rest = rest or pttl(KEYS)
local used, stale = 0, false
if rest > 0 then
  local text = redis.call('GET', KEYS[1])
  used = tonumber(text)
  if not used or used < 1 or used % 1 ~= 0 then return redis.error_reply('FOREIGN value') end
  if not string.find(text, '^[1-9]%d*$') then return redis.error_reply('FOREIGN value') end -- together
elseif rest == -1 then
  return redis.error_reply('FOREIGN key without expiry')
end
local found, left = used, rest
if rest > period then rest, stale = period, true end
local free, cost = count - used - keep, asked
if ARGV.due and ARGV.due ~= rest then cost = 0 end
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
if ARGV.dry then return {found, left}, cost end
ARGV.due = used == 0 and period or rest
local after = used + cost
if after == 0 then
  if rest >= 0 then redis.call('DEL', KEYS[1]) end
elseif used == 0 then
  set(KEYS, cost, 'PX', ARGV[3])
elseif stale then
  set(KEYS, after, 'PX', rest)
elseif cost == asked and cost ~= 0 then
  redis.call('INCRBY', KEYS[1], ARGV[1])
elseif cost ~= 0 then
  redis.call('INCRBY', KEYS[1], cost)
end
return {found, left}, cost, 0
end
local costs, shared = {}, #ARGV - #KEYS / 2
for i = 1, #KEYS / 2 do costs[i], ARGV[shared + i] = ARGV[shared + i], nil end
local last = #ARGV
local unit, how, most, scale = ARGV[last - 1] + 0, ARGV[last], ARGV[last - 2]
local moves = how == 's' or how == 'r'
ARGV[last], ARGV[last - 1], ARGV[last - 2] = nil, nil, nil
if moves then scale, ARGV[last - 3] = ARGV[last - 3] + 0, nil end
time = redis.call('TIME')
now = time[1] * 1000 + math.floor(time[2] / 1000)
local function once(KEYS, ARGV)
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
end
local all, n = {}, 0
for i = 1, #costs do
  local own = {costs[i]}
  for j = 2, #ARGV do own[j] = ARGV[j] end
  local done, reply = pcall(once, {KEYS[2 * i - 1], KEYS[2 * i]}, own)
  n = n + 1
  if not done or type(reply) == 'table' and reply.err then
    all[n] = -2
  elseif type(reply) == 'table' then
    all[n] = #reply
    for j = 1, #reply do all[n + j] = reply[j] end
    n = n + #reply
  else
    all[n], all[n + 1] = 1, reply
    n = n + 1
  end
end
return all
