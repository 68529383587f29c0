package redisstore_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

// openAndTake opens a store and takes one unit.
func openAndTake(t *testing.T, url string) (*redisstore.Store, error) {
	t.Helper()
	o := redisstore.Options{Prefix: newPrefix(), Timeout: longTimeout}.WithConnTimeout(longConnTimeout)
	store, err := redisstore.Open(t.Context(), url, &o)
	if err != nil {
		return nil, err
	}
	t.Cleanup(store.Close)
	d, err := store.Take(t.Context(), penstock.Request{Key: "k", Limit: penstock.PerHour(10), Cost: 1})
	if err == nil && !d.Allowed {
		t.Errorf("%s: got %+v, want the first unit", url, d)
	}
	return store, err
}

func TestOpenSelectsDatabaseAndUser(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	for _, user := range [][]string{
		{"me", "on", ">p@ss", "~*", "&*", "+@all"},
		{"other", "on", ">x", "~*", "&*", "+ping", "+hello", "+info", "+client", "+select"},
	} {
		if _, err := server.Command(append([]string{"ACL", "SETUSER"}, user...)...); err != nil {
			t.Fatal(err)
		}
	}
	for _, url := range []string{
		"redis://me:p%40ss@" + server.Addr + "/3",
		"unix://me:p%40ss@" + server.Socket + "?db=3",
	} {
		if _, err := openAndTake(t, url); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
	keyspace, err := server.Command("INFO", "keyspace")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(keyspace, "db3:keys=2") || strings.Contains(keyspace, "db0:") {
		t.Errorf("keyspace: got %q, want both keys in database 3", keyspace)
	}
	for url, want := range map[string]string{
		"redis://me:wrong@" + server.Addr: "WRONGPASS",
		"redis://other:x@" + server.Addr:  "NOPERM",
	} {
		if _, err := openAndTake(t, url); !errors.Is(err, penstock.ErrUnavailable) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %v with %s", url, err, penstock.ErrUnavailable, want)
		}
	}
}

// requiredCommands are the permissions that a user needs, as in the documentation of
// the package.
var requiredCommands = strings.Fields("+hello +eval +evalsha +time +pttl +pexpiretime +get +set +incrby +append +setrange +del")

func TestOpenMinimalPermissions(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	prefix := newPrefix()
	user := append([]string{"ACL", "SETUSER", "limiter", "on", ">secret", "resetchannels", "~" + prefix + "*", "-@all"}, requiredCommands...)
	mustCommand(t, server, user...)
	store := openPrefix(t, "redis://limiter:secret@"+server.Addr, prefix, longTimeout)
	if got := store.Warnings(); len(got) != 1 || !strings.Contains(got[0], server.Addr) || !strings.Contains(got[0], "INFO") {
		t.Errorf("a user without INFO: got warnings %q, want one about INFO", got)
	}
	for _, l := range everyAlgorithm {
		for _, r := range []penstock.Request{
			{Cost: 3},
			{Cost: 2, ID: "x"},
			{Cost: -1, ID: "x"},
			{Cost: -1},
			{Cost: 0},
			{Cost: 1, MaxDelay: time.Minute},
			{Cost: 50, AtMost: true},
			{Cost: 5},
			{Cost: penstock.Reset},
			{Cost: penstock.Reset},
		} {
			r.Key, r.Limit = "k", l
			take(t, store, r)
		}
		takeAll(t, store, l, 2, "a", "b", "a")
	}
	mustCommand(t, server, append(user, "+role")...)
	take(t, openPrefix(t, strings.Replace(redistest.StartSentinel(t, server.Addr), "://", "://limiter:secret@", 1), prefix, longTimeout), takeOne)
	mustCommand(t, server, append(user, "+info", "+ping")...)
	store = openPrefix(t, "redis://limiter:secret@"+server.Addr, prefix, longTimeout)
	if got := store.Warnings(); len(got) != 0 {
		t.Errorf("a user with INFO: got warnings %q, want none", got)
	}
}

// Some servers speak only RESP2.
func TestOpenFallsBackToRESP2(t *testing.T) {
	t.Parallel()
	server := startServer(t, "--rename-command", "HELLO", "")
	store, err := openAndTake(t, "redis://"+server.Addr+"/2")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range everyAlgorithm {
		for _, r := range []penstock.Request{{Cost: 3}, {Cost: 2, ID: "x"}, {Cost: -1}, {Cost: 50, AtMost: true}, {Cost: 5}} {
			r.Key, r.Limit = "k", l
			take(t, store, r)
		}
		takeAll(t, store, l, 1, "a", "b")
	}
}

// A Cluster node opened as a single server would redirect most calls.
func TestOpenDetectsCluster(t *testing.T) {
	t.Parallel()
	node := startServer(t, "--cluster-enabled", "yes")
	if err := openError(t, "redis://"+node.Addr); !strings.Contains(err.Error(), "redis-cluster://") {
		t.Errorf("one node of a Cluster: got %v, want it to name the scheme", err)
	}
	server := startServer(t)
	if _, err := openAndTake(t, "redis-cluster://"+server.Addr); err != nil {
		t.Errorf("a single server opened as a Cluster: %v, want it to work", err)
	}
}

func TestOpenWarnsAboutReplica(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	makeReplica(t, server)
	store := openURL(t, "redis://"+server.Addr, longTimeout)
	if got := store.Warnings(); len(got) != 1 || !strings.Contains(got[0], "is a replica") {
		t.Errorf("got warnings %q, want one that it is a replica", got)
	}
}

func TestOpenHonorsContext(t *testing.T) {
	t.Parallel()
	p := startProxy(t, liveServer.Addr)
	p.Freeze()
	for name, url := range map[string]string{
		"server": "redis://" + p.Addr, "sentinel": "redis-sentinel://" + p.Addr + "/main", "cluster": "redis-cluster://" + p.Addr,
	} {
		ctx, cancel := context.WithCancel(t.Context())
		before, opened := p.Connections(), make(chan error)
		go func() {
			o := redisstore.Options{}.WithConnTimeout(longConnTimeout)
			_, err := redisstore.Open(ctx, url, &o)
			opened <- err
		}()
		waitFor(t, "Open has connected", func() bool { return p.Connections() > before })
		cancel()
		err := <-opened
		if !errors.Is(err, penstock.ErrUnavailable) || !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), p.Addr) {
			t.Errorf("%s: got %v, want %v with the address and the context error", name, err, penstock.ErrUnavailable)
		}
	}
}

func TestNewRejectsSilentClient(t *testing.T) {
	if store, err := redisstore.New(nil, nil); store != nil || err == nil {
		t.Errorf("no client: got %v, %v, want an error", store, err)
	}
	if store, err := redisstore.New(silentClient{}, nil); store != nil || !errors.Is(err, penstock.ErrUnavailable) {
		t.Errorf("a client that does not answer: got %v, %v, want %v", store, err, penstock.ErrUnavailable)
	}
}

type silentClient struct{}

func (silentClient) Do(context.Context, []redisstore.Call) {}
func (silentClient) Sharded() bool                         { return false }

func (silentClient) Info(context.Context) (map[string]string, error) {
	return nil, errors.New("no answer")
}

func TestOpenNoServerFails(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	server.Kill()
	_, err := redisstore.Open(t.Context(), "redis://"+server.Addr, nil)
	if !errors.Is(err, penstock.ErrUnavailable) || !strings.Contains(err.Error(), server.Addr) {
		t.Errorf("got %v, want %v with the address %s", err, penstock.ErrUnavailable, server.Addr)
	}
}

func TestOpenWarnsAboutEviction(t *testing.T) {
	t.Parallel()
	server := startServer(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	store, err := openAndTake(t, "redis://"+server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	got := store.Warnings()
	if len(got) != 1 || !strings.Contains(got[0], "allkeys-lru") || !strings.Contains(got[0], server.Addr) {
		t.Errorf("got warnings %q, want one with the policy and the address %s", got, server.Addr)
	}
	if store, err = openAndTake(t, "unix://"+liveServer.Socket); err != nil || len(store.Warnings()) != 0 {
		t.Errorf("a server that evicts nothing: got warnings %q, error %v, want none", store.Warnings(), err)
	}
}

func TestOpenRejectsBadOptions(t *testing.T) {
	for o, field := range map[*redisstore.Options]string{
		{Prefix: "a{b"}:     "Prefix",
		{Timeout: -1}:       "Timeout",
		{Timeout: 1 << 62}:  "Timeout",
		{MaxCalls: -1}:      "MaxCalls",
		{MaxCalls: 1 << 30}: "MaxCalls",
	} {
		if _, err := redisstore.Open(t.Context(), "unix://"+liveServer.Socket, o); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%+v: got error %v, want one that names %s", *o, err, field)
		}
	}
}

func TestOpenTLSVerifiesCertificate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeCertificate(t, dir)
	port := strconv.Itoa(freePort(t))
	server := startServer(t, "--tls-port", port, "--tls-cert-file", filepath.Join(dir, "cert.pem"),
		"--tls-key-file", filepath.Join(dir, "key.pem"), "--tls-ca-cert-file", filepath.Join(dir, "cert.pem"),
		"--tls-auth-clients", "no")
	trust := "?ca=" + filepath.Join(dir, "cert.pem")
	if _, err := openAndTake(t, "rediss://127.0.0.1:"+port+trust); err != nil {
		t.Errorf("a trusted certificate: %v", err)
	}
	if _, err := openAndTake(t, "rediss://127.0.0.1:"+port); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an untrusted certificate: got %v, want an error about it", err)
	}
	for query, accepted := range map[string]bool{trust: false, trust + "&verify_hostname=false": true, "?verify_hostname=false": false} {
		_, err := openAndTake(t, "rediss://localhost:"+port+query)
		if (err == nil) != accepted || err != nil && !strings.Contains(err.Error(), "certificate") {
			t.Errorf("a certificate without the host's name, %s: got %v, want it accepted: %v", query, err, accepted)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond) // Redis waits for the rest of a command
	defer cancel()
	if _, err := redisstore.Open(ctx, "rediss://"+server.Addr+trust, nil); err == nil {
		t.Error("a server without TLS: got no error")
	}
}

func writeCertificate(t *testing.T, dir string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"cert.pem": {Type: "CERTIFICATE", Bytes: cert}, "key.pem": {Type: "EC PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
