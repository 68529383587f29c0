// Package redistest starts real Redis servers for tests, on ports that nobody
// uses, and on a clock that the test holds if it wants to. It needs redis-server
// in the path, and for the clock a C compiler.
package redistest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// Options say what kind of server to start.
type Options struct {
	FakeClock bool     // whether the test holds its clock
	Port      int      // 0 for one that nobody uses
	Args      []string // more settings, as on redis-server's command line
	Wrapper   []string // the command that runs the server, such as valgrind's
	Sentinel  string   // the configuration of a sentinel, which this is then
}

// A Server is a running redis-server.
type Server struct {
	Addr   string // host:port
	Port   int
	Socket string // the same server on a unix socket
	Clock  *Clock // if the test holds it

	dir     string
	command *exec.Cmd
	log     bytes.Buffer
	exited  chan struct{}
}

// Start starts a server and waits until it answers. It must be stopped.
func Start(o Options) (*Server, error) {
	dir, err := os.MkdirTemp("", "redistest")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, Port: o.Port, Socket: filepath.Join(dir, "socket"), exited: make(chan struct{})}
	if err := s.start(o); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// Main runs the tests of a package, which share a server that is handed to use first.
// It returns what the process is to end with.
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
		if s.Port, err = freePort(); err != nil {
			return err
		}
	}
	s.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port))
	if err := s.prepare(o); err != nil {
		return err
	}
	return s.run()
}

// prepare works out the command.
func (s *Server) prepare(o Options) error {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return fmt.Errorf("redistest: these tests need a real redis-server: %w", err)
	}
	args := []string{
		"--port", strconv.Itoa(s.Port), "--unixsocket", s.Socket, "--bind", "127.0.0.1", "--dir", s.dir,
		"--save", "", "--appendonly", "no", "--enable-debug-command", "local",
		"--repl-diskless-sync-delay", "0", // a replica would wait five seconds for others
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
	return s.holdClock()
}

func (s *Server) holdClock() error {
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
	s.command.Env = append(os.Environ(), "LD_PRELOAD="+library, "REDISTEST_CLOCK="+s.Clock.path)
	return nil
}

// startTimeout is how long a server may take to answer, also one that a simulator
// runs.
const startTimeout = time.Minute

func (s *Server) run() error {
	if err := s.command.Start(); err != nil {
		return fmt.Errorf("redistest: %w", err)
	}
	go func() {
		_ = s.command.Wait()
		close(s.exited)
	}()
	if err := s.await(); err != nil {
		return err
	}
	if s.Clock == nil {
		return nil
	}
	// Whether a key that has expired is still there after the clock has
	// stepped back is the server's choice. Here it waits until it is asked.
	_, err := s.Command("DEBUG", "SET-ACTIVE-EXPIRE", "0")
	return err
}

// await waits until the server answers.
func (s *Server) await() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := s.Command("PING"); err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-s.exited:
			return fmt.Errorf("redistest: redis-server ended:\n%s", s.log.String())
		case <-ctx.Done():
			return errors.New("redistest: redis-server does not answer")
		}
	}
}

// Stop kills the server and removes its files.
func (s *Server) Stop() {
	s.Kill()
	if s.Clock != nil {
		s.Clock.close()
		s.Clock = nil
	}
	_ = os.RemoveAll(s.dir)
}

// Kill ends the server at once, as a crash would.
func (s *Server) Kill() {
	if s.command == nil || s.command.Process == nil {
		return
	}
	_ = s.command.Process.Kill()
	<-s.exited
}

// Restart starts a server that was killed again, on the same port.
func (s *Server) Restart() error {
	old := s.command
	s.command = exec.Command(old.Path, old.Args[1:]...)
	s.command.Env, s.command.Stdout, s.command.Stderr = old.Env, old.Stdout, old.Stderr
	s.command.Dir, s.command.SysProcAttr = old.Dir, old.SysProcAttr
	s.exited = make(chan struct{})
	return s.run()
}

// PID returns the number of the server's process.
func (s *Server) PID() int { return s.command.Process.Pid }

// File returns the path of one of the files that the server writes where it is.
func (s *Server) File(name string) string { return filepath.Join(s.dir, name) }

// Pause stops the server in the middle of whatever it is doing.
func (s *Server) Pause() error { return s.command.Process.Signal(syscall.SIGSTOP) }

// Resume lets a paused server go on.
func (s *Server) Resume() error { return s.command.Process.Signal(syscall.SIGCONT) }

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port, nil
}
