// Package simulation contains models and simulations of the library as a whole, which know only
// its exported API: many nodes with all wrappers over failing networks, and for each wrapper and
// operation a model that is simpler than the code. It has tests only; simserver is for other tests.
package simulation
