// Package observe is what the daemon knows about its own traffic: rates and their history,
// the top keys, the state of the store. The types are the responses of the admin API, so
// that programs can decode them.
package observe
