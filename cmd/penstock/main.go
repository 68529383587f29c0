// Penstock is a rate-limiting server and its command line. It serves Envoy, proxies,
// Redis clients and HTTP clients from the same counters.
//
//	penstock serve
//	penstock take user:42 --limit "10/1m"
//
// penstock help lists all commands.
package main

import (
	"os"
	_ "time/tzdata" // time zones for calendar limits on machines without zone data
)

func main() { os.Exit(run(withCommand(os.Args[0], os.Args[1:]), os.Stdout, os.Stderr)) }
