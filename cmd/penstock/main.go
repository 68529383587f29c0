// Penstock is the daemon and the command: a rate limiter that Envoy, proxies, Redis
// clients and HTTP clients can ask, all of them about the same counters.
//
//	penstock serve
//	penstock take user:42 --limit "10/1m"
//
// penstock help tells the rest.
package main

import (
	"os"
	_ "time/tzdata" // limits follow calendars also where the machine has none
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }
