-- Puts records: ARGV is the highest version that the caller knows, and for each record its
-- field, the version that it replaces or nothing, and its value. Versions are times, so that
-- they grow even if the hash was lost. After a conflict it returns the record in its way.
local now = redis.call('TIME')
highest = math.max(highest, number(ARGV[1]), now[1] * 1000000 + now[2])
for i = 2, #ARGV, 3 do
  local old = version(get(ARGV[i]))
  if ARGV[i + 1] ~= '' and old ~= number(ARGV[i + 1]) then
    return {'conflict', ARGV[i], get(ARGV[i]) or ''}
  end
  highest = math.max(highest, old)
end
for i = 2, #ARGV, 3 do
  write(ARGV[i], highest + 1, ARGV[i + 2])
end
finish()
return {'ok'}
