package redisproxy

import "fmt"

// A Preset is what a proxy does differently from the servers behind it.
type Preset struct {
	Name string

	// Replies are what the proxy answers by itself, by the command or its first two words in capitals:
	// a reply of RESP without its last line end, or Close.
	Replies map[string]string

	NoKeys    string // the error for a script without keys; by default the first server runs it
	CrossSlot string // the error for a script with keys of several slots; by default the server of the first key runs it
	NoTags    bool   // whether hash tags are not known: any two keys can be on different servers
	Version   int    // of the proxy that checks scripts, see [CheckScript]; by default none are checked
}

// Close closes the connection in place of a reply.
const Close = ""

const crossSlot = "CROSSSLOT Keys in request don't hash to the same slot"

// The presets follow what the services document, what their users report, and where neither says, what
// is hardest for a client.
var (
	// FirstKey says that it is a Redis, and runs every script on the server of its first key.
	FirstKey = Preset{Name: "first-key"}

	// CrossSlot is FirstKey with the error of a Cluster for keys of several slots.
	CrossSlot = Preset{Name: "crossslot", CrossSlot: crossSlot}

	Alibaba = alibaba("alibaba", 70)

	// Alibaba6 does not know what Redis 6.2 and 7.0 have added.
	Alibaba6 = alibaba("alibaba-6.0", 60)

	Tencent = Preset{Name: "tencent", CrossSlot: crossSlot, Replies: map[string]string{
		"HELLO":          "-NOPROTO unsupported protocol version",
		"CLIENT SETINFO": "-ERR unknown subcommand",
	}}

	Huawei = Preset{
		Name:   "huawei",
		NoKeys: "ERR eval/evalsha numkeys must be bigger than zero in redis cluster mode",
		Replies: map[string]string{
			"HELLO":  "-ERR unknown command",
			"CLIENT": "-ERR unknown command",
		},
	}

	ElastiCacheServerless = Preset{
		Name: "elasticache-serverless", CrossSlot: crossSlot,
		NoKeys: "ERR Lua scripts without any input keys are not supported.",
	}

	RedisEnterprise = Preset{Name: "redis-enterprise", CrossSlot: crossSlot, Replies: map[string]string{
		"CLUSTER": "-ERR command is not allowed",
	}}

	// EnvoyRing is Envoy since 2025, which says that it has no RESP3, and checks no keys.
	EnvoyRing = Preset{Name: "envoy-ring", NoKeys: "invalid request", Replies: map[string]string{
		"HELLO 3": "-NOPROTO unsupported protocol version",
		"CLIENT":  envoyUnknown("client"),
		"INFO":    envoyUnknown("info"),
		"SCRIPT":  envoyUnknown("script"),
		"CLUSTER": envoyUnknown("cluster"),
	}}

	// EnvoyCluster is an older Envoy in front of a Cluster; INFO is made up of several.
	EnvoyCluster = Preset{Name: "envoy-cluster", CrossSlot: crossSlot, NoKeys: "invalid request", Replies: map[string]string{
		"HELLO":   envoyUnknown("hello"),
		"CLIENT":  envoyUnknown("client"),
		"INFO":    bulk("# Proxy\r\nupstream_hosts:2\r\n"),
		"SCRIPT":  envoyUnknown("script"),
		"CLUSTER": envoyUnknown("cluster"),
	}}

	// Twemproxy knows hash tags only if it is told to.
	Twemproxy = Preset{Name: "twemproxy", NoTags: true, NoKeys: "ERR invalid argument", Replies: map[string]string{
		"HELLO": Close, "INFO": Close, "SCRIPT": Close, "CLIENT": Close, "TIME": Close, "CLUSTER": Close, "CONFIG": Close, "ACL": Close, "ROLE": Close,
	}}

	Codis = Preset{Name: "codis", Replies: map[string]string{
		"HELLO":   "-ERR unknown command 'hello'",
		"INFO":    "-ERR command 'INFO' is not allowed",
		"SCRIPT":  "-ERR command 'SCRIPT' is not allowed",
		"CLIENT":  "-ERR command 'CLIENT' is not allowed",
		"TIME":    "-ERR command 'TIME' is not allowed",
		"CONFIG":  "-ERR command 'CONFIG' is not allowed",
		"CLUSTER": "-ERR unknown command 'cluster'",
	}}
)

// Presets are all of them.
var Presets = []Preset{
	FirstKey, CrossSlot, Alibaba, Alibaba6, Tencent, Huawei, ElastiCacheServerless, RedisEnterprise, EnvoyRing, EnvoyCluster, Twemproxy, Codis,
}

func alibaba(name string, version int) Preset {
	return Preset{
		Name: name, Version: version,
		NoKeys:    "ERR for redis cluster, eval/evalsha number of keys can't be negative or zero",
		CrossSlot: "ERR eval/evalsha command keys must be in same slot",
		Replies: map[string]string{
			"CLIENT":  "-ERR unknown subcommand or wrong number of arguments",
			"CLUSTER": "-ERR command is not supported",
			"CONFIG":  "-ERR command config not support for normal user",
			"ACL":     "-ERR command acl not support for normal user",
		},
	}
}

func envoyUnknown(command string) string {
	return fmt.Sprintf("-ERR unknown command '%s', with args beginning with: ", command)
}

func bulk(text string) string { return fmt.Sprintf("$%d\r\n%s", len(text), text) }
