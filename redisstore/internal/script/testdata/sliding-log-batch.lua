local redis, KEYS, ARGV = redis, KEYS, ARGV
local asked, count, period = ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0
local how, keep = ARGV[4], 0
if how and #how > 1 and asked > 0 then how, keep = string.sub(how, 1, 1), string.sub(how, 3) + 0 end
local function step(KEYS, i)
local rest = redis.call('PTTL', KEYS[1])
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
    redis.call('SET', KEYS[1], log, 'PX', reset)
  elseif rest >= 0 then
    redis.call('DEL', KEYS[1])
  end
end
if cost == asked and cost > 0 then return used end -- alone
if used == 0 then reset = 0 end
return {ARGV.dry and 0 or cost, used, wait, reset}, cost, 0
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
