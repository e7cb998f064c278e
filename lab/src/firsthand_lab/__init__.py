"""The laboratory: experiments and peers. Imports firsthand; nothing imports it."""
