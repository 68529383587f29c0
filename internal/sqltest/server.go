// Package sqltest starts real database servers for tests: PostgreSQL and MariaDB, in a directory of their own, on a
// free port of this machine and without a password. It needs Debian's packages postgresql and mariadb-server, or what
// brings the same programs.
package sqltest

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/redistest"
)

// A Server is a database server.
type Server struct {
	Addr string // host:port
	DSN  string // for the driver: pgx's, or go-sql-driver's
	URL  string // for the daemon

	dir     string
	command func() *exec.Cmd
	ready   func() bool
	running *exec.Cmd
	exited  chan struct{}
	log     bytes.Buffer
}

// StartPostgres starts a PostgreSQL with settings such as "fsync=off", and stops it when the test ends.
func StartPostgres(t testing.TB, settings ...string) *Server {
	t.Helper()
	s, port := newServer(t)
	bin := postgresPrograms(t)
	data := filepath.Join(s.dir, "data")
	s.run(t, filepath.Join(bin, "initdb"), "-D", data, "-U", "penstock", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	words := []string{
		"-D", data, "-k", s.dir, "-h", "127.0.0.1", "-p", port,
		"-c", "dynamic_shared_memory_type=mmap", // files in the directory: a killed server leaves no others behind
	}
	for _, setting := range settings {
		words = append(words, "-c", setting)
	}
	s.command = func() *exec.Cmd { return s.unprivileged(filepath.Join(bin, "postgres"), words...) }
	s.ready = func() bool {
		return exec.Command(filepath.Join(bin, "pg_isready"), "-h", "127.0.0.1", "-p", port, "-q").Run() == nil
	}
	s.URL = "postgres://penstock@" + s.Addr + "/postgres?sslmode=disable"
	s.DSN = s.URL
	s.Start(t)
	return s
}

// StartPgBouncer starts a PgBouncer in front of a PostgreSQL with settings such as "pool_mode=transaction", and stops it when
// the test ends.
func StartPgBouncer(t testing.TB, postgres *Server, settings ...string) *Server {
	t.Helper()
	s, port := newServer(t)
	path, err := exec.LookPath("pgbouncer")
	if err != nil {
		t.Fatalf("sqltest: these tests need a real PgBouncer, such as Debian's package pgbouncer: %v", err)
	}
	host, serverPort, _ := net.SplitHostPort(postgres.Addr)
	lines := append([]string{
		"[databases]", "* = host=" + host + " port=" + serverPort + " user=penstock",
		"[pgbouncer]", "listen_addr=127.0.0.1", "listen_port=" + port, "unix_socket_dir=", "auth_type=any", "ignore_startup_parameters=extra_float_digits",
	}, settings...)
	file := filepath.Join(s.dir, "pgbouncer.ini")
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s.command = func() *exec.Cmd { return s.unprivileged(path, file) }
	s.ready = func() bool {
		conn, err := net.Dial("tcp", s.Addr)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}
	s.URL = "postgres://penstock@" + s.Addr + "/postgres?sslmode=disable"
	s.DSN = s.URL
	s.Start(t)
	return s
}

// postgresPrograms returns the directory of the server's programs, which Debian does not have in the path.
func postgresPrograms(t testing.TB) string {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if len(found) > 0 {
		return filepath.Dir(found[len(found)-1])
	}
	path, err := exec.LookPath("initdb")
	if err != nil {
		t.Fatalf("sqltest: these tests need a real PostgreSQL, such as Debian's package postgresql: %v", err)
	}
	return filepath.Dir(path)
}

// StartMariaDB starts a MariaDB with settings such as "sync-binlog=0", and stops it when the test ends.
func StartMariaDB(t testing.TB, settings ...string) *Server {
	t.Helper()
	s, port := newServer(t)
	path, err := exec.LookPath("mariadbd")
	if err != nil {
		t.Fatalf("sqltest: these tests need a real MariaDB, such as Debian's package mariadb-server: %v", err)
	}
	data := filepath.Join(s.dir, "data")
	s.run(t, "mariadb-install-db", "--no-defaults", "--datadir="+data, "--auth-root-authentication-method=normal", "--skip-test-db")
	words := []string{
		"--no-defaults", "--datadir=" + data, "--socket=" + filepath.Join(s.dir, "socket"), "--pid-file=" + filepath.Join(s.dir, "pid"),
		"--bind-address=127.0.0.1", "--port=" + port, "--skip-name-resolve",
	}
	for _, setting := range settings {
		words = append(words, "--"+setting)
	}
	s.command = func() *exec.Cmd { return s.unprivileged(path, words...) }
	s.ready = s.accepts
	s.URL = "mysql://root@" + s.Addr + "/mysql"
	s.DSN = "root@tcp(" + s.Addr + ")/mysql"
	s.Start(t)
	return s
}

// newServer returns a server with a directory that an unprivileged user can enter.
func newServer(t testing.TB) (s *Server, port string) {
	t.Helper()
	number, release, err := redistest.ReservePort()
	if err != nil {
		t.Fatal(err)
	}
	port = strconv.Itoa(number)
	s = &Server{Addr: net.JoinHostPort("127.0.0.1", port)}
	if s.dir, err = os.MkdirTemp("", "sqltest"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.stop()
		release()
		_ = os.RemoveAll(s.dir)
	})
	if id := unprivilegedUser(); id != nil {
		if err := os.Chown(s.dir, int(id.Uid), int(id.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	return s, port
}

// unprivilegedUser returns the user as whom a server runs if the tests run as root, which servers refuse to do.
func unprivilegedUser() *syscall.Credential {
	if os.Getuid() != 0 {
		return nil
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		return nil
	}
	uid, _ := strconv.Atoi(nobody.Uid)
	gid, _ := strconv.Atoi(nobody.Gid)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

func (s *Server) unprivileged(name string, words ...string) *exec.Cmd {
	c := exec.Command(name, words...)
	c.Dir, c.Stdout, c.Stderr = s.dir, &s.log, &s.log
	redistest.DieWithParent(c)
	if c.SysProcAttr == nil {
		c.SysProcAttr = &syscall.SysProcAttr{}
	}
	c.SysProcAttr.Credential = unprivilegedUser()
	return c
}

func (s *Server) run(t testing.TB, name string, words ...string) {
	t.Helper()
	if err := s.unprivileged(name, words...).Run(); err != nil {
		t.Fatalf("sqltest: %s: %v\n%s", name, err, s.log.String())
	}
}

// Start starts the server again after [Server.Kill], and waits until it accepts connections.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if s.running == nil || ended(s.exited) { // again: processes of the server that was killed may still hold its files
			s.start(t)
		}
		if s.ready() {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("sqltest: the server does not start:\n%s", s.log.String())
		}
	}
}

func (s *Server) start(t testing.TB) {
	t.Helper()
	command, exited := s.command(), make(chan struct{})
	if err := command.Start(); err != nil {
		t.Fatalf("sqltest: %v", err)
	}
	go func() {
		_ = command.Wait()
		close(exited)
	}()
	s.running, s.exited = command, exited
}

// accepts reports whether the server greets a client.
func (s *Server) accepts() bool {
	conn, err := net.Dial("tcp", s.Addr)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetReadDeadline(time.Now().Add(time.Second))
	_, err = conn.Read(make([]byte, 1))
	return err == nil
}

func ended(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// stop ends the server at once, but lets it release what it shares with others.
func (s *Server) stop() {
	if s.running == nil {
		return
	}
	_ = s.running.Process.Signal(syscall.SIGQUIT)
	select {
	case <-s.exited:
		s.running = nil
	case <-time.After(10 * time.Second):
		s.Kill()
	}
}

// Kill kills the server, as a crash would, and waits for its end.
func (s *Server) Kill() {
	if s.running == nil {
		return
	}
	_ = s.running.Process.Kill()
	<-s.exited
	s.running = nil
}

// Signal sends a signal to the server's main process, such as SIGSTOP.
func (s *Server) Signal(t testing.TB, signal os.Signal) {
	t.Helper()
	if err := s.running.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
}

// PID returns the process ID of the server's main process.
func (s *Server) PID() int { return s.running.Process.Pid }

// Dir returns the directory of the server's files.
func (s *Server) Dir() string { return s.dir }
