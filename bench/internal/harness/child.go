package harness

import (
	"fmt"
	"os"
	"os/exec"
)

// childVariable is the environment variable that gives a child process its task.
const childVariable = "PENSTOCK_BENCH_CHILD"

// Child returns a command that runs this program again, for a task: as a server, or to measure
// something in a process of its own.
func Child(task string) *exec.Cmd {
	cmd := exec.Command(Must(os.Executable()))
	cmd.Env = append(os.Environ(), childVariable+"="+task)
	cmd.Stderr = os.Stderr
	return cmd
}

// RunIfChild does the task of a child process and ends it, if this process is one.
func RunIfChild(do func(task string)) {
	task, isChild := os.LookupEnv(childVariable)
	if !isChild {
		return
	}
	if err := Try(func() { do(task) }); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}
