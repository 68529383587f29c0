package redisproxy

import (
	"fmt"
	"testing"
)

// The scripts are those of which users reported that Alibaba's proxy refuses or accepts them, cut down
// to the call that matters, and those that its documents name.
func TestCheckScriptAgreesWithReports(t *testing.T) {
	wrongPExpire := fmt.Sprintf(badArity, "pexpire")
	for _, c := range []struct{ from, script, want string }{
		{"redisson#4221", `redis.call('set', KEYS[1] .. ':1', 1)`, badKey},
		{"redisson#4221", `local key=KEYS[1]..':1'; redis.call('set', key, 1)`, badKey},
		{"redisson#4221", `KEYS[1]=KEYS[1]..':1'; redis.call('set', KEYS[1], 1)`, ""},
		{"redisson#4221", `return redis.call('get', KEYS[1])`, ""},
		{"huey#632", `local key = KEYS[1]
			local res = redis.call('zrangebyscore', key, '-inf', ARGV[1])`, badKey},
		{"huey#632", `local res = redis.call('zrangebyscore', KEYS[1], '-inf', ARGV[1])
			if #res and redis.call('zremrangebyscore', KEYS[1], '-inf', ARGV[1]) == #res then return res end`, ""},
		{"DistributedLock#254", `if redis.call('get', ARGV[1]) == ARGV[2] then return redis.call('del', ARGV[1]) end return 0`, badKey},
		{"redis_rate#93", `local rate_limit_key = KEYS[1]
			local tat = redis.call("GET", rate_limit_key)`, badKey},
		{"ulule/limiter#190", `local key = KEYS[1]
			local ret = redis.call("incrby", key, ARGV[1])`, badKey},
		{"ulule/limiter#190", `local ret = redis.call("incrby", KEYS[1], ARGV[1])`, ""},
		{"hyperf#7498", `local result = redis.call(ARGV[1], KEYS[1], ARGV[2], ARGV[3])`, badName},
		{"hyperf#7498", `local result = redis.call('hIncrBy', KEYS[1], ARGV[2], ARGV[3])`, ""},
		{"redisson#5596", `local val = redis.call('get', KEYS[5]); if val ~= false then return tonumber(val) end
			local timeout = tonumber(redis.call('zscore', KEYS[3], ARGV[2]))`, ""},
		{"delayqueue#12", `local args = {'LPush', KEYS[2]}
			redis.call(unpack(args))`, badName},
		{"csdn 129246903", `return redis.call('pexpire', KEYS[1])`, wrongPExpire},
		{"aliyun 466195", `for i = 1, #KEYS do redis.call('DEL', KEYS[i]) end`, badKey},
		{"aliyun 645851", `redis.call('DEL', KEYS[1], 'other')`, badKey},
		{"aliyun 636094", `redis.call('LPUSH', KEYS[2], unpack(ids))`, badExpression},
		{"aliyun 636094", `redis.call('SET', KEYS[1], redis.call('GET', KEYS[2]))`, badExpression},
		{"assumed", `local call = redis.call; call('GET', KEYS[1])`, badName},
		{"assumed", `redis['call']('GET', KEYS[1])`, badName},
		{"assumed", `redis.call'PING'`, badName},
		{"assumed", `redis.call('G' .. 'ET', KEYS[1])`, badName},
		{"assumed", `redis.pcall('BITOP', KEYS[1])`, fmt.Sprintf(badCommand, "bitop")},
	} {
		if got := CheckScript(c.script, 70); got != c.want {
			t.Errorf("%s: %s: %q, want %q", c.from, c.script, got, c.want)
		}
	}
}

// Only code counts, and in it a name that is declared again.
func TestCheckScriptReadsLua(t *testing.T) {
	for script, want := range map[string]string{
		"-- redis.call('GET', key)\nreturn redis.call('TIME')":                                               "",
		"--[[ redis.call('GET', key) ]] return redis.call('TIME')":                                           "",
		"--[==[ ]] redis.call('GET', key) ]==] return 1":                                                     "",
		`return 'it\'s redis.call("GET", key)'`:                                                              "",
		"return [[redis.call('GET', key)]]":                                                                  "",
		"return redis.call([[GET]], KEYS[1])":                                                                "",
		`redis.call('SET', KEYS[1], table.concat({ARGV[1], f(2, 3)}, ','), 'PX', ARGV[2])`:                   "",
		"local redis, KEYS = redis, KEYS\nreturn redis.call('GET', KEYS[1])":                                 "",
		"local keys, KEYS = KEYS, {}\nfor i = 1, #keys do KEYS[1] = keys[i]; redis.call('GET', KEYS[1]) end": "",
		"return redis.error_reply('no')":                                                                     "",
		"redis.call('GET', x.KEYS[1])":                                                                       badKey,
		"redis.call('GET', KEYS[1 + 0])":                                                                     badKey,
		"redis.call('GET', KEYS[#KEYS])":                                                                     badKey,
		"redis.call('GET', (KEYS[1]))":                                                                       badKey,
		"redis.call('SET', KEYS[1])":                                                                         fmt.Sprintf(badArity, "set"),
		"redis.call('TIME', KEYS[1])":                                                                        fmt.Sprintf(badArity, "time"),
		"":                                                                                                   "",
		"'":                                                                                                  "",
	} {
		if got := CheckScript(script, 70); got != want {
			t.Errorf("%s: %q, want %q", script, got, want)
		}
	}
}

// The proxy knows the commands of its own version.
func TestCheckScriptKnowsVersion(t *testing.T) {
	for _, c := range []struct {
		script string
		since  int
	}{
		{"redis.call('PEXPIRE', KEYS[1], 1)", 0},
		{"redis.call('PEXPIRE', KEYS[1], 1, 'NX')", 70},
		{"redis.call('PEXPIRETIME', KEYS[1])", 70},
		{"redis.call('GETDEL', KEYS[1])", 62},
	} {
		for _, version := range []int{50, 60, 62, 70, 72} {
			if got := CheckScript(c.script, version); (got == "") != (version >= c.since) {
				t.Errorf("%s on %d: %q, want it accepted since %d", c.script, version, got, c.since)
			}
		}
	}
}
