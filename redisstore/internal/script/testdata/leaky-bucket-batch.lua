local redis, KEYS, ARGV = redis, KEYS, ARGV
local asked, capacity = ARGV[1] + 0, ARGV[2] + 0
local unit, mark, how, bound, interval, overdraft, ceiling = 1000000, '', ARGV[3], false, false, capacity, capacity
if how then
  if #how > 1 then how, ceiling = string.sub(how, 1, 1), capacity - string.sub(how, 3) end
  overdraft = ARGV[4] + 0
  if how == '1' or how == 'o' then interval = ARGV[5] + 0 end
  if ARGV[6] == 'u' then unit, mark = 1000, 'u' end
  if ARGV[7] then bound = ARGV[7] + 0 end
end
local function step(KEYS, i)
local rest = redis.call('PTTL', KEYS[1])
local value, debt, part, stale = false, 0, 0, false
if rest > 0 then
  local text = redis.call('GET', KEYS[1])
  value = tonumber(text)
  if value and mark == '' then
    if value > 0 or value % 1 ~= 0 then return redis.error_reply('FOREIGN value') end
    debt = value + rest * unit
  else
    local digits, decimals, micros = string.match(text, '^(%-?%d+)%.?(%d*)(u?)$')
    if not digits or digits + 0 > 0 then return redis.error_reply('FOREIGN value') end
    if decimals ~= '' and (#decimals ~= 3 or micros == '') then return redis.error_reply('FOREIGN value') end
    if micros == mark then
      debt, part = digits + rest * unit, tonumber(decimals) or 0
    elseif mark == 'u' then -- after a step back, the debt in nanoseconds may exceed a double
      part = math.fmod(-digits, 1000)
      debt = (digits + part) / 1000 + rest * unit
    else
      debt = (digits + rest * 1000) * 1000 - (tonumber(decimals) or 0)
    end
    value = false
  end
  if debt <= 0 then
    debt, part = 0, 0
  elseif debt > capacity then
    local most = capacity + math.max(capacity, overdraft, capacity == 0 and 4503599627370496 or 60000 * unit)
    if debt > most then debt, part, stale = most, 0, true end
  end
elseif rest == -1 then
  return redis.error_reply('FOREIGN key without expiry')
end
local most, late, charge = ceiling, false, asked
if bound then late = debt > bound end
if interval and charge > 0 then
  local free = 0
  if how == 'o' then
    free = math.max(math.floor((capacity + overdraft - debt) / interval), 0) * interval
    charge, late = math.min(charge, free), false
    most = debt + charge
  elseif debt < most then
    free = math.min(math.floor((most - debt) / interval) * interval, capacity)
  end
  if charge > free then charge = math.max(free, interval) end
end
if charge > 0 and (debt + charge > most or late) then charge = 0 end
local after = debt + charge
if after <= 0 then
  if rest >= 0 then redis.call('DEL', KEYS[1]) end
elseif charge ~= 0 or stale then
  local moved = after - rest * unit
  if value and not stale and moved <= 0 then
    if debt > 0 and charge == asked then
      redis.call('INCRBY', KEYS[1], ARGV[1])
    else
      redis.call('INCRBY', KEYS[1], moved - value)
    end
  else
    local ttl = math.max(math.floor(2 * capacity / unit), 1000)
    if after > capacity then ttl = math.max(ttl, math.ceil(after / unit)) end
    moved = after - ttl * unit
    if part > 0 then
      moved = string.format('-%.0f.%03d', math.abs(moved), part) .. mark
    elseif mark ~= '' then
      moved = string.format('%.0f', moved) .. mark
    end
    redis.call('SET', KEYS[1], moved, 'PX', ttl)
  end
end
return debt, charge, how == 'o' and 0 or math.ceil(debt / unit)
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
