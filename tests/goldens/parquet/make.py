"""Writes the Parquet files of this folder with pyarrow: .env/oracle/bin/python tests/goldens/parquet/make.py"""

import pathlib

import pyarrow as pa
import pyarrow.parquet as pq

folder = pathlib.Path(__file__).parent
prompts = pa.table({"prompt": ["one", "tw\u00f6", "three", "", "five"], "answer": [1, 2, 3, 4, 5],
                    "note": ["n", None, "", None, None]})
pq.write_table(prompts, folder / "prompts.parquet", row_group_size=2)
pq.write_table(prompts.slice(0, 0), folder / "no_rows.parquet")
messages = [[{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}],
            [{"role": "user", "content": "2+3"}, {"role": "assistant", "content": "5"}]]
kind = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string()), ("tool_calls", pa.list_(pa.string()))]))
pq.write_table(pa.table({"messages": pa.array(messages, kind)}), folder / "messages.parquet")

samples = folder.parents[1] / "fuzz/corpus/image"
png, jpeg = (samples / "rgb.png").read_bytes(), (samples / "exif_6.jpg").read_bytes()
image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
one, two = {"bytes": png, "path": "a.png"}, {"bytes": jpeg, "path": None}
pq.write_table(pa.table({
    "prompt": ["a", "b", "c"], "number": [1, 2, 3], "plain": pa.array([png, jpeg, None], pa.binary()),
    "image": pa.array([one, two, None], image), "images": pa.array([[one, two], [], [two]], pa.list_(image))}),
    folder / "images.parquet")

# The columns of DAPO-Math-17k, which are verl's.
chat = pa.list_(pa.struct([("content", pa.string()), ("role", pa.string())]))
answer = pa.struct([("ground_truth", pa.string()), ("style", pa.string())])
hint = '\n\nRemember to put your answer on its own line after "Answer:".'
questions, answers = ["What is 30 + 4?", "What is 3 - 4?"], ["34", "-1"]
pq.write_table(pa.table({
    "data_source": ["math_dapo"] * 2,
    "prompt": pa.array([[{"content": question + hint, "role": "user"}] for question in questions], chat),
    "ability": ["MATH"] * 2,
    "reward_model": pa.array([{"ground_truth": right, "style": "rule-lighteval/MATH_v2"} for right in answers], answer),
    "extra_info": pa.array([{"index": f"9a9b6eb4-{i}"} for i in range(2)], pa.struct([("index", pa.string())]))}),
    folder / "dapo.parquet")
