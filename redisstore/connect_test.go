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
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

// serve starts a server for one test.
func serve(t *testing.T, args ...string) *redistest.Server {
	t.Helper()
	server, err := redistest.Start(redistest.Options{Args: args})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	return server
}

// openAndTake takes a unit by a URL.
func openAndTake(t *testing.T, url string) (*redisstore.Store, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	store, err := redisstore.Open(ctx, url, &redisstore.Options{Timeout: 10 * time.Second})
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
	server := serve(t)
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
	if !strings.Contains(keyspace, "db3:keys=1") || strings.Contains(keyspace, "db0:") {
		t.Errorf("keyspace: got %q, want one key in database 3", keyspace)
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

// requiredCommands is what a user must be permitted, and no more; as the documentation of
// the package has it.
var requiredCommands = strings.Fields("+hello +eval +evalsha +time +pttl +get +set +incrby +del")

func TestOpenMinimalPermissions(t *testing.T) {
	server := serve(t)
	prefix := newPrefix()
	user := append([]string{"ACL", "SETUSER", "limiter", "on", ">secret", "resetchannels", "~" + prefix + "*", "-@all"}, requiredCommands...)
	mustCommand(t, server, user...)
	store := openPrefix(t, "redis://limiter:secret@"+server.Addr, prefix, generous)
	if got := store.Warnings(); len(got) != 1 || !strings.Contains(got[0], server.Addr) || !strings.Contains(got[0], "INFO") {
		t.Errorf("a user who may not ask INFO: got warnings %q, want one that says so", got)
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
	take(t, openPrefix(t, strings.Replace(redistest.StartSentinel(t, server.Addr), "://", "://limiter:secret@", 1), prefix, generous), takeOne)
	mustCommand(t, server, append(user, "+info", "+ping")...)
	store = openPrefix(t, "redis://limiter:secret@"+server.Addr, prefix, generous)
	if got := store.Warnings(); len(got) != 0 {
		t.Errorf("a user who may ask INFO: got warnings %q, want none", got)
	}
}

// What speaks Redis's protocol does not always speak the newer one.
func TestOpenWithoutRESP3(t *testing.T) {
	server := serve(t, "--rename-command", "HELLO", "")
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

// A Cluster that is taken for one server would redirect most calls.
func TestOpenDetectsCluster(t *testing.T) {
	node := serve(t, "--cluster-enabled", "yes")
	if err := openError(t, "redis://"+node.Addr); !strings.Contains(err.Error(), "redis-cluster://") {
		t.Errorf("one node of a Cluster: got %v, want it to name the scheme", err)
	}
	server := serve(t)
	if _, err := openAndTake(t, "redis-cluster://"+server.Addr); err != nil {
		t.Errorf("a server that is no Cluster: %v, want it to be taken for what it is", err)
	}
}

func TestOpenWarnsAboutReplica(t *testing.T) {
	server := serve(t)
	mustCommand(t, server, "REPLICAOF", "127.0.0.1", "1")
	store, err := redisstore.Open(t.Context(), "redis://"+server.Addr, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if got := store.Warnings(); len(got) != 1 || !strings.Contains(got[0], "is a replica") {
		t.Errorf("got warnings %q, want one that it is a replica", got)
	}
}

// Who connects can stop waiting.
func TestOpenHonorsContext(t *testing.T) {
	p := startProxy(t, liveServer.Addr)
	p.Freeze()
	for name, url := range map[string]string{
		"server": "redis://" + p.Addr, "sentinel": "redis-sentinel://" + p.Addr + "/main", "cluster": "redis-cluster://" + p.Addr,
	} {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(20*time.Millisecond, cancel)
		_, err := redisstore.Open(ctx, url, nil)
		if !errors.Is(err, penstock.ErrUnavailable) || !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), p.Addr) {
			t.Errorf("%s: got %v, want %v with the address, because who asked has left", name, err, penstock.ErrUnavailable)
		}
	}
}

// New returns no store with an error, and none without a client.
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
	server := serve(t)
	server.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := redisstore.Open(ctx, "redis://"+server.Addr, nil)
	if !errors.Is(err, penstock.ErrUnavailable) || !strings.Contains(err.Error(), server.Addr) {
		t.Errorf("got %v, want %v with the address %s", err, penstock.ErrUnavailable, server.Addr)
	}
}

func TestOpenWarnsAboutEviction(t *testing.T) {
	server := serve(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
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
		{MaxCalls: -1}:      "MaxCalls",
		{MaxCalls: 1 << 30}: "MaxCalls",
	} {
		if _, err := redisstore.Open(t.Context(), "unix://"+liveServer.Socket, o); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%+v: got error %v, want one that names %s", *o, err, field)
		}
	}
}

// A server is trusted if its certificate says so, and not otherwise.
func TestOpenTLSVerifiesCertificate(t *testing.T) {
	dir := t.TempDir()
	writeCertificate(t, dir)
	port := freeTLSPort(t)
	server := serve(t, "--tls-port", port, "--tls-cert-file", filepath.Join(dir, "cert.pem"),
		"--tls-key-file", filepath.Join(dir, "key.pem"), "--tls-ca-cert-file", filepath.Join(dir, "cert.pem"),
		"--tls-auth-clients", "no")
	trust := "?ca=" + filepath.Join(dir, "cert.pem")
	if _, err := openAndTake(t, "rediss://127.0.0.1:"+port+trust); err != nil {
		t.Errorf("a certificate that is trusted: %v", err)
	}
	if _, err := openAndTake(t, "rediss://127.0.0.1:"+port); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a certificate that nobody vouches for: got %v, want an error about it", err)
	}
	if _, err := openAndTake(t, "rediss://"+server.Addr+trust); err == nil {
		t.Error("a server that does not encrypt: got no error")
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

func freeTLSPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}
