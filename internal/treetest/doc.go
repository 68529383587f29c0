// Package treetest checks rules about all Go files of the repository: which packages may
// import which, that every package has a comment and a specific name, and that tests sleep
// only on a clock of their own. It also checks the Go releases and the actions of CI.
package treetest
