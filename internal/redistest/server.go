// Package redistest starts real Redis servers for tests, on free ports and on
// request with a fake clock. It needs redis-server in the path, and a C compiler
// for the fake clock.
package redistest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Options configure a server.
type Options struct {
	FakeClock bool     // the test sets the server's clock
	Port      int      // 0 picks a free port
	Args      []string // further redis-server arguments
	Wrapper   []string // command that runs the server, such as valgrind
	Sentinel  string   // configuration of a sentinel; the server is then a sentinel
	bus       bool     // adds a free port for the Cluster bus
}

// A Server is a running redis-server.
type Server struct {
	Addr   string // host:port
	Port   int
	Socket string // unix socket of the same server
	Clock  *Clock // nil without FakeClock

	bus     int      // port of the Cluster bus
	ports   []func() // end the reservations of the ports
	wrapped bool     // whether another command runs the server
	dir     string
	command *exec.Cmd
	log     bytes.Buffer
	exited  chan struct{}
}

// startAttempts covers another process that takes the port first.
const startAttempts = 5

// Start starts a server and waits until it answers. The caller must stop it.
func Start(o Options) (s *Server, err error) {
	for range startAttempts {
		if s, err = startOnce(o); err == nil || o.Port != 0 {
			return s, err
		}
	}
	return nil, err
}

func startOnce(o Options) (*Server, error) {
	dir, err := os.MkdirTemp("", "redistest")
	if err != nil {
		return nil, err
	}
	s := &Server{
		dir: dir, Port: o.Port, Socket: filepath.Join(dir, "socket"), wrapped: len(o.Wrapper) > 0, exited: make(chan struct{}),
	}
	if err := s.start(o); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// Main starts a server, passes it to use, runs the tests of a package and returns the
// exit code.
func Main(tests interface{ Run() int }, o Options, use func(*Server)) int {
	s, err := Start(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer s.Stop()
	use(s)
	return tests.Run()
}

func (s *Server) start(o Options) (err error) {
	if s.Port == 0 {
		if s.Port, err = s.reservePort(); err != nil {
			return err
		}
	}
	if o.bus || slices.Contains(o.Args, "--cluster-enabled") {
		if s.bus, err = s.reservePort(); err != nil {
			return err
		}
		o.Args = append([]string{"--cluster-port", strconv.Itoa(s.bus)}, o.Args...)
	}
	s.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port))
	if err := s.prepare(o); err != nil {
		return err
	}
	return s.run()
}

// prepare builds the command line.
func (s *Server) prepare(o Options) error {
	path, version, err := program()
	if err != nil {
		return fmt.Errorf("redistest: these tests need a real redis-server: %w", err)
	}
	args := []string{
		"--port", strconv.Itoa(s.Port), "--unixsocket", s.Socket, "--bind", "127.0.0.1", "--dir", s.dir,
		"--save", "", "--appendonly", "no",
		"--repl-diskless-sync-delay", "0", // the default waits five seconds for more replicas
	}
	if !strings.HasPrefix(version, "Redis server v=6.") { // which has no such setting
		args = append(args, "--enable-debug-command", "local")
	}
	if o.Sentinel != "" {
		config := filepath.Join(s.dir, "sentinel.conf")
		if err := os.WriteFile(config, []byte(o.Sentinel), 0o600); err != nil {
			return err
		}
		args = []string{config, "--sentinel", "--port", strconv.Itoa(s.Port), "--dir", s.dir}
	}
	words := append(slices.Clone(o.Wrapper), path)
	words = append(append(words, args...), o.Args...)
	s.command = exec.Command(words[0], words[1:]...)
	s.command.Dir, s.command.Stdout, s.command.Stderr = s.dir, &s.log, &s.log
	DieWithParent(s.command)
	if !o.FakeClock {
		return nil
	}
	return s.preloadClock()
}

// program returns the server's program, and what it says of its version. REDISTEST_SERVER names another than
// redis-server, such as a valkey-server.
func program() (path, version string, err error) {
	path, err = exec.LookPath(cmp.Or(os.Getenv("REDISTEST_SERVER"), "redis-server"))
	if err == nil {
		version, err = versionOf(path)
	}
	return path, version, err
}

var versions sync.Map // by the path of the program

func versionOf(path string) (string, error) {
	if known, ok := versions.Load(path); ok {
		return known.(string), nil
	}
	text, err := exec.Command(path, "--version").Output()
	versions.Store(path, string(text))
	return string(text), err
}

func (s *Server) preloadClock() error {
	text, err := shim()
	if err != nil {
		return err
	}
	library := filepath.Join(s.dir, "clock.so")
	if err := os.WriteFile(library, text, 0o700); err != nil {
		return err
	}
	if s.Clock, err = newClock(s.dir); err != nil {
		return err
	}
	if _, version, _ := program(); strings.HasPrefix(version, "Valkey server v=9.") {
		s.Clock.lag = 2 * time.Millisecond // it reads the time once a millisecond
	}
	s.command.Env = append(os.Environ(), "LD_PRELOAD="+library, "REDISTEST_CLOCK="+s.Clock.path)
	return nil
}

// startTimeout only detects hangs, also of a server under valgrind.
const startTimeout = 2 * time.Minute

func (s *Server) run() error {
	if err := s.command.Start(); err != nil {
		return fmt.Errorf("redistest: %w", err)
	}
	go func() {
		_ = s.command.Wait()
		close(s.exited)
	}()
	if err := s.waitReady(); err != nil {
		return err
	}
	if s.Clock == nil {
		return nil
	}
	// Active expiry would make it random whether an expired key still exists after
	// the clock steps back. Without it, keys expire when they are accessed.
	_, err := s.Command("DEBUG", "SET-ACTIVE-EXPIRE", "0")
	return err
}

// reservePort returns a port that is the server's until Stop, also while it is killed.
func (s *Server) reservePort() (port int, err error) {
	port, release, err := freePort()
	if err == nil {
		s.ports = append(s.ports, release)
	}
	return port, err
}

// waitReady waits until the server answers.
func (s *Server) waitReady() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if s.ready() {
			return nil
		}
		select {
		case <-tick.C:
		case <-s.exited:
			return fmt.Errorf("redistest: redis-server exited:\n%s", s.log.String())
		case <-ctx.Done():
			return errors.New("redistest: redis-server does not answer")
		}
	}
}

// ready reports whether the server answers, and not one of another process that took
// the port first.
func (s *Server) ready() bool {
	if _, err := s.Command("PING"); err != nil {
		return false
	}
	info, err := s.Command("INFO", "server")
	return err == nil && (s.wrapped || strings.Contains(info, fmt.Sprintf("process_id:%d\r\n", s.PID())))
}

// Stop kills the server and removes its files.
func (s *Server) Stop() {
	s.Kill()
	for _, release := range s.ports {
		release()
	}
	s.ports = nil
	if s.Clock != nil {
		s.Clock.close()
		s.Clock = nil
	}
	_ = os.RemoveAll(s.dir)
}

// Kill kills the server, as a crash would.
func (s *Server) Kill() {
	if s.command == nil || s.command.Process == nil {
		return
	}
	_ = s.command.Process.Kill()
	<-s.exited
}

// running reports whether the server was not killed and has not exited.
func (s *Server) running() bool {
	select {
	case <-s.exited:
		return false
	default:
		return true
	}
}

// Restart starts a killed server again on the same port.
func (s *Server) Restart() error {
	old := s.command
	s.command = exec.Command(old.Path, old.Args[1:]...)
	s.command.Env, s.command.Stdout, s.command.Stderr = old.Env, old.Stdout, old.Stderr
	s.command.Dir, s.command.SysProcAttr = old.Dir, old.SysProcAttr
	s.exited = make(chan struct{})
	return s.run()
}

// PID returns the process ID of the server.
func (s *Server) PID() int { return s.command.Process.Pid }

// File returns the path of a file in the server's working directory.
func (s *Server) File(name string) string { return filepath.Join(s.dir, name) }

// Pause suspends the server process. When it returns, the server answers nothing more.
func (s *Server) Pause() error {
	if err := s.command.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return awaitStopped(s.PID())
}

// Resume continues a paused server.
func (s *Server) Resume() error { return s.command.Process.Signal(syscall.SIGCONT) }
