// Holds the precompiled header that the torch targets share; it defines nothing itself.
