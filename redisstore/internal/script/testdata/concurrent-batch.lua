local redis, KEYS, ARGV = redis, KEYS, ARGV
local asked, period, id, how = ARGV[1] + 0, ARGV[2] + 0, ARGV[3] or '', ARGV[5]
local count, keep, sub, find, read = asked > 0 and ARGV[4] + 0, 0, string.sub, string.find, struct.unpack
if how and #how > 1 then how, keep = sub(how, 1, 1), sub(how, 3) + 0 end
local function step(KEYS, i)
local id = sub(id, 8 * i - 7, 8 * i)
local rest = redis.call('PTTL', KEYS[1])
local permits, close, expiry, used, oldest, newest, stale, single = '', 0, 0, 0, 0, 0, rest == 0, false
if rest > 0 then
  permits = redis.call('GET', KEYS[1])
  if permits == '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0' then
    permits, single = '', true
  elseif permits ~= '' then
    used = (#permits - 4) / 12
    if used < 1 or used % 1 ~= 0 then return redis.error_reply('FOREIGN value') end
    close, expiry = read('>I4xxxxxxxxI4', permits)
    oldest = 2 * rest - (close - expiry) % 4294967296
    newest, single = oldest, used == 1
    if not single then newest = 2 * rest - (close - read('>I4', permits, 12 * used + 1)) % 4294967296 end
  end
  if permits == '' and rest > 2 * period then -- the clock stepped back, perhaps further than it can count
    rest, stale = 0, true
  end
elseif rest == -1 then
  return redis.error_reply('FOREIGN key without expiry')
else
  rest = 0
end
local drops = used > 0 and oldest <= 1
if newest > 2 * period + 1 or drops then
  local function left(i) return 2 * rest - (close - read('>I4', permits, 12 * i + 1)) % 4294967296 end
  local kept, moved, latest, gone, high, probe = used, {}, close - 2 * (rest - period), 0, used, 0
  while kept > 0 and left(kept) > 2 * period + 1 do kept = kept - 1 end
  for i = kept + 1, used do
    local mark = read('>I4', permits, 12 * i + 1) % 2
    moved[i - kept] = sub(permits, 12 * i - 7, 12 * i) .. struct.pack('>I4', latest % 4294967296 + mark)
  end
  if kept < used then -- the rest may exceed what the clock can count
    permits, stale = sub(permits, 1, 12 * kept + 4) .. table.concat(moved), true
    close, rest = (close - 2 * (rest - period - 1)) % 4294967296, period + 1
  end
  while gone < high do
    if left(probe + 1) <= 1 then gone = probe + 1 else high = probe end
    probe = math.floor((gone + high) / 2)
  end
  permits, used = sub(permits, 1, 4) .. sub(permits, 12 * gone + 5), used - gone
  if used > 0 then expiry = read('>I4', permits, 13) end
end
local first, held = false, 0
if id ~= '' and used > 0 then
  first = find(permits, id, 5, true)
  while first and first % 12 ~= 5 do first = find(permits, id, first + 1, true) end
  if first then
    if first > 5 then expiry = read('>I4', permits, first + 8) end
    repeat held = held + 1 until first + 12 * held > #permits or sub(permits, first + 12 * held, first + 12 * held + 7) ~= id
  end
end
local granted, wait, waits = asked, 0, false
if asked > 0 and first and ARGV[6] ~= '1' then
  granted = held
elseif asked > 0 then
  local free = count - used - keep
  if how == '1' and granted > free then granted = math.max(free, 1) end
  if granted + keep > count then
    granted, wait = 0, -1
  elseif granted > free then
    granted, waits = 0, 12 * (granted - free)
  end
  if first and wait >= 0 then granted, waits = 0, math.max(waits or 0, first + 7) end
  if waits then wait = math.floor(rest - (close - read('>I4', permits, waits + 1)) % 4294967296 / 2) end
elseif asked < 0 and id == '' then
  granted, stale = -used, stale or rest > 0 -- also if all have expired: a clock that steps back must not find them again
elseif asked < 0 then
  granted = first and expiry % 2 == 0 and math.max(asked, -held) or 0
end
local reset, own = 0, ''
if granted ~= 0 and not ARGV.dry then
  local mark = 0
  if granted < 0 and used + granted == 0 then
    permits = ''
  elseif first then
    local after = sub(permits, first + 12 * held)
    mark = expiry % 2
    if held + granted > 0 and granted < 0 then
      after = string.rep(id .. struct.pack('>I4', expiry - mark + 1), held + granted) .. after
    end
    permits = sub(permits, 1, first - 1) .. after
  end
  if granted > 0 then
    own = id .. struct.pack('>I4', (close - 2 * (rest - period)) % 4294967296 + mark)
    if granted > 1 then own = string.rep(own, granted) end
    reset = period
  end
  if granted < 0 or not first then used = used + granted end
end
if reset == 0 and used > 0 then
  local ahead = (close - read('>I4', permits, 12 * used + 1)) % 4294967296
  reset = rest - (ahead + ahead % 2) / 2
end
if not ARGV.dry and (granted ~= 0 or stale) then
  if used == 0 and (stale or id == '') then
    redis.call('DEL', KEYS[1])
  elseif used == 0 and single then
    redis.call('SETRANGE', KEYS[1], '0', '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0')
  elseif used == 0 then
    redis.call('SET', KEYS[1], '', 'KEEPTTL')
  elseif stale or granted > 0 and rest <= period then
    local ttl = math.ceil(1.5 * period)
    permits = struct.pack('>I4', (close - 2 * (rest - ttl)) % 4294967296) .. sub(permits, 5) .. own
    local px = string.format('%d', ttl)
    redis.call('SET', KEYS[1], permits, 'PX', px)
  elseif single and #permits <= 4 and not drops then
    redis.call('SETRANGE', KEYS[1], '0', (permits == '' and '\0\0\0\0' or permits) .. own)
  elseif first or drops then
    redis.call('SET', KEYS[1], permits .. own, 'KEEPTTL')
  else
    redis.call('APPEND', KEYS[1], permits == '' and '\0\0\0\0' .. own or own)
  end
end
if granted == asked then return reset * 16384 + used end -- alone
return {ARGV.dry and 0 or granted, used, wait, reset}, granted, 0, held
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
