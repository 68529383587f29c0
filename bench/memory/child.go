package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// childEnv makes this program a child process that measures one contender by itself, as
// "task keys name", and prints the result as JSON.
const childEnv = "PENSTOCK_BENCH_CHILD"

// tasks are what a child process can measure, by name.
var tasks = map[string]func(name string, keys int) (any, error){
	"weigh": func(name string, keys int) (any, error) { return weighByName(name, keys) },
	"time":  func(name string, keys int) (any, error) { return timeByName(name, keys) },
}

// runInChild starts this program again for a task, and stores its result.
func runInChild(task, name string, keys int, result any) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %s", childEnv, task, keys, name))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s %s: %w", task, name, err)
	}
	return json.Unmarshal(out, result)
}

// runIfChild does the task of a child process, and reports whether this process is one.
func runIfChild() (isChild bool, err error) {
	order, isChild := os.LookupEnv(childEnv)
	if !isChild {
		return false, nil
	}
	task, rest, _ := strings.Cut(order, " ")
	count, name, _ := strings.Cut(rest, " ")
	keys, err := strconv.Atoi(count)
	if err != nil || tasks[task] == nil {
		return true, fmt.Errorf("%s: bad task %q", childEnv, order)
	}
	result, err := tasks[task](name, keys)
	if err != nil {
		return true, err
	}
	return true, json.NewEncoder(os.Stdout).Encode(result)
}
