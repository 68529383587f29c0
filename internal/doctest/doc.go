// Package doctest holds the documents to what the code does: blocks that can be
// computed are generated, limits on the pages parse, Go on the pages compiles,
// links lead to files, and the README exists in two languages that agree.
//
//	go test ./internal/doctest -update
//
// writes the generated blocks. [PageCommands] and [CommentCommands] find the commands,
// which the tests of the command line run.
package doctest
