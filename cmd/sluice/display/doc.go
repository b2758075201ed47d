// Package display writes what the commands show people: short numbers with their units, tables of a width, and text from
// elsewhere that a terminal must not take for its own commands.
package display
