-- Writes records back: ARGV is a horizon to raise the hash's to, and for each record its
-- field, version and value. A record is written if its version is higher than the hash's,
-- or if the hash has none and has not removed it.
local horizon = number(get('h'))
for i = 2, #ARGV, 3 do
  local old, new = get(ARGV[i]), number(ARGV[i + 1])
  if new > (old and version(old) or horizon) then
    write(ARGV[i], new, ARGV[i + 2])
  end
end
if number(ARGV[1]) > horizon then
  local h = whole(number(ARGV[1]))
  redis.call('HSET', KEYS[1], 'h', h)
end
finish()
return {'ok'}
